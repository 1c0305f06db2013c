"""Rolling summaries: the one pipeline that makes them, beside an answer, from the queue, or all over again."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from omniagent.ai import prompts
from omniagent.ai.providers.llm_provider import LLMProvider, ModelRequest, Overrides, Purpose
from omniagent.ai.providers.model_calls import Completion, complete
from omniagent.errors import EmptyAnswer, ModelUnavailable, NotFound
from omniagent.messages import ChatMessage, TextPart, Usage
from omniagent.session import window
from omniagent.session.manager import SessionManager
from omniagent.session.summary_store import RollingSummary
from omniagent.session.window import PastTurn


@dataclass(frozen=True, slots=True)
class Summarized:
    """What became of a session's summary."""

    written: int
    end_turn_number: int
    is_done: bool
    usage: Usage = Usage()


def _forever() -> float:
    return math.inf


class CallMeter(Protocol):
    """Whoever pays for model calls."""

    async def before_call(self, input_tokens: int, output_tokens: int) -> None:
        """Refuse a call of about so many tokens by raising an error."""

    def counted(self, usage: Usage) -> None:
        """Note what a call has cost."""

    async def after_call(self) -> None:
        """Make sure that what was noted outlives the process, as what the call returned is about to."""


class SummaryPipeline:
    """Brings the summary of one session up to the turn before its latest, which may still be answered again.

    Each piece is stored as soon as it is made: whoever runs out of time leaves the rest to the next run.
    """

    def __init__(
        self,
        session: SessionManager,
        provider: LLMProvider,
        overrides: Overrides = Overrides(),
        *,
        meter: "CallMeter | None" = None,
    ) -> None:
        self._session = session
        self._meter = meter
        self._provider = provider
        self._overrides = overrides
        self._max_tokens = session.settings.summary_input_tokens // 2

    async def update(self, *, time_left: Callable[[], float] = _forever, most: int | None = None) -> Summarized:
        """Summarize the turns since the latest summary, in `most` pieces at most."""
        return await self._extend(draft=False, time_left=time_left, most=most)

    async def rebuild(self, *, time_left: Callable[[], float] = _forever) -> Summarized:
        """Summarize every turn again and put the result in the place of all summaries.

        The pieces are drafts until the last one is made. A rebuild that was cut off goes on from its newest draft.
        """
        summarized = await self._extend(draft=True, time_left=time_left, most=None)
        if summarized.is_done and summarized.end_turn_number:
            await self._session.publish_draft()
        elif summarized.is_done:
            await self._session.drop_summaries()
        return summarized

    async def _extend(self, *, draft: bool, time_left: Callable[[], float], most: int | None) -> Summarized:
        head = await self._session.head()
        if head is None:
            raise NotFound
        previous = await self._session.latest_summary(draft=draft)
        end, written, usage = previous.end_turn_number if previous else 0, 0, Usage()
        last = head.latest_turn_number - 1
        async for turns in self._session.past_turns(end + 1, last):
            left = time_left()
            if left <= 0:
                return Summarized(written, end, False, usage)
            try:
                async with asyncio.timeout(None if left == math.inf else left) as limit:
                    summary, cost = await self._fold(previous, turns)
            except TimeoutError as exc:
                if not limit.expired():
                    raise
                if not written:  # to go on later would be to pay for the same again and again
                    raise ModelUnavailable("no complete summary in the time that is left") from exc
                return Summarized(written, end, False, usage)
            usage += cost
            if not await self._session.add_summary(summary, draft=draft):
                # Somebody else has summarized these turns, or the session has changed: nothing is published.
                return Summarized(written, end, not draft, usage)
            previous, end, written = summary, summary.end_turn_number, written + 1
            if written == most:
                return Summarized(written, end, end == last, usage)
        return Summarized(written, end, True, usage)

    async def _fold(self, previous: RollingSummary | None, turns: Sequence[PastTurn]) -> tuple[RollingSummary, Usage]:
        """Fold the turns after the previous summary into it.

        Raises a `ModelError` when a piece could not be summarized: half a summary is none.
        """
        content, usage, tokens = previous.content if previous else "", Usage(), 0
        for messages in _calls(turns, self._max_tokens):
            # Half of the input is kept for the summary so far, which grows with every piece.
            kept = content[: window.characters_of(content, self._max_tokens)]
            request = ModelRequest(
                instructions=prompts.SUMMARIZE,
                messages=[ChatMessage.user(prompts.summary_input(kept or None, messages))],
                overrides=self._overrides,
                user_id=self._session.user_id,
            )
            completion = await metered(self._meter, self._provider, request, purpose="summary")
            if not completion.text:
                raise EmptyAnswer("the model returned an empty summary")
            content, tokens = completion.text, completion.usage.output_tokens
            usage += completion.usage
        summary = RollingSummary(
            content=content,
            token_count=tokens or window.estimate_text(content),
            start_turn_number=previous.end_turn_number + 1 if previous else 1,
            end_turn_number=turns[-1].number,
        )
        return summary, usage


async def metered(
    meter: CallMeter | None, provider: LLMProvider, request: ModelRequest, *, purpose: Purpose
) -> Completion:
    """Complete a request that somebody pays for. One that is cancelled is estimated: the model has read its input."""
    if meter is None:
        return await complete(provider, request, purpose=purpose)
    input_tokens = window.estimate_request(request)
    await meter.before_call(input_tokens, request.overrides.max_output_tokens or 0)
    try:
        completion = await complete(provider, request, purpose=purpose)
    except asyncio.CancelledError:
        meter.counted(window.estimate_call(input_tokens, []))
        raise
    uncounted = window.estimate_call(input_tokens, [TextPart(text=completion.text)])
    meter.counted(completion.usage if completion.usage.total_tokens else uncounted)
    await meter.after_call()
    return completion


def _calls(turns: Sequence[PastTurn], max_tokens: int) -> Iterator[list[ChatMessage]]:
    """Yield the messages of each model call."""
    lines = [line for turn in turns for line in _lines(turn, max_tokens)]
    for piece in window.pieces(lines, max_tokens):
        yield [message for line in piece for message in line.messages]


def _lines(turn: PastTurn, max_tokens: int) -> Iterator[PastTurn]:
    """Yield a turn as it will be read: one line a message, a line that is too long in several."""
    for message in window.messages_of([turn]):
        text = prompts.transcript_line(message).removeprefix(f"{message.role}: ")
        for part in _split(text, max_tokens):
            said = ChatMessage.user(part) if message.role == "user" else ChatMessage.assistant(part)
            yield replace(turn, messages=(said,), tokens=window.estimate_text(part))


def _split(text: str, max_tokens: int) -> Iterator[str]:
    size = window.characters_of(text, max_tokens)
    yield from (text[start : start + size] for start in range(0, len(text), size))
