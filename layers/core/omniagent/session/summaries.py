"""Rolling summaries and names: what a model is asked about a session, beside its answers."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from omniagent.ai import prompts
from omniagent.ai.providers.llm_provider import LLMProvider, ModelRequest, Overrides, Purpose
from omniagent.ai.providers.model_calls import Completion, complete
from omniagent.budget.spending import Meter
from omniagent.errors import EmptyAnswer, ModelError, ModelUnavailable, NotFound
from omniagent.messages import ChatMessage, TextPart, Usage
from omniagent.session import window
from omniagent.session.live import Place, SessionMessage, SessionState, turns_of
from omniagent.session.manager import SessionManager
from omniagent.session.window import PastTurn, RollingSummary

logger = logging.getLogger(__name__)

TURNS_PER_READ = 50
"""How many turns are read and folded at a time."""
RECENT_TURNS = 3
MAX_CHARACTERS = 2_000
NAME_SECONDS = 10.0
"""Maximum wait for a name. After that, the first words are used."""


@dataclass(frozen=True, slots=True)
class Summarized:
    """The result of one run of the pipeline."""

    written: int
    end_turn_number: int
    is_done: bool


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """The prompt of an answer up to its question. A summary that begins with it reads most of it from the cache."""

    provider: LLMProvider
    request: ModelRequest
    first_turn: int
    """The earliest turn that it shows. What is before is in its summary."""

    def is_cheaper(self, turns: Sequence[PastTurn]) -> bool:
        """Whether it has all of these turns, and costs less to read than they alone."""
        price = self.provider.cached_price(self.request.overrides) * window.estimate_request(self.request)
        return self.first_turn <= turns[0].number and price < sum(turn.tokens for turn in turns)

    @property
    def summary_request(self) -> ModelRequest:
        asked = ChatMessage.user(prompts.SUMMARIZE_ABOVE)
        return replace(self.request, messages=[*self.request.messages, asked])


NoteCost = Callable[[Purpose, Usage], None]
"""Called with the cost of each model call for a summary or a name."""


def forever() -> float:
    return math.inf


@dataclass(frozen=True, slots=True)
class SummaryPipeline:
    """Extends a session's summary up to the turn before the latest, which may still be answered again.

    Each piece is stored as soon as it is generated. A run that is out of time leaves the rest to the next one.
    """

    session: SessionManager
    provider: LLMProvider
    overrides: Overrides = Overrides()
    meter: Meter | None = None
    note_cost: NoteCost | None = None

    @property
    def _max_tokens(self) -> int:
        """Of each call's input, the previous summary gets one half and the new turns the other."""
        size = self.provider.context_window(self.overrides)
        return window.token_limit(self.session.settings.context_max_tokens, size) // 2

    async def rebuild(self, *, time_left: Callable[[], float] = forever) -> Summarized:
        """Summarize every turn again and replace all summaries with the result.

        The pieces are drafts until the last one is generated. An interrupted rebuild continues from its newest draft.
        """
        head = await self.session.head()
        if head is None:
            raise NotFound
        summarized = await self.update(at=head.tip, draft=True, time_left=time_left)
        if not summarized.is_done:
            return summarized
        # If the draft is gone, a message of it was deleted meanwhile: the next run starts again.
        is_published = await self.session.publish_drafts(head.tip if summarized.end_turn_number else None)
        return replace(summarized, is_done=is_published or not summarized.end_turn_number)

    async def update(
        self,
        *,
        at: Place | None = None,
        draft: bool = False,
        time_left: Callable[[], float] = forever,
        most: int | None = None,
        prompt: SharedPrompt | None = None,
    ) -> Summarized:
        """Summarize the turns since the latest summary on the path to a place, in at most `most` pieces.

        With `prompt` if that is cheaper. `draft`: since the latest draft of a rebuild.
        """
        head = await self.session.head()
        if head is None:
            raise NotFound
        at = head.tip if at is None else at
        previous = await self.session.latest_summary(at, draft=draft)
        end, written = previous.end_turn_number if previous else 0, 0
        last = at.turn_number - 1
        while messages := await self._turns_after(at, end, last):
            turns = turns_of(messages)
            left = time_left()
            if left <= 0:
                return Summarized(written, end, False)
            try:
                async with asyncio.timeout(None if left == math.inf else left) as limit:
                    shared = prompt if prompt and turns[-1].number == last and prompt.is_cheaper(turns) else None
                    summary = await self._fold(previous, turns, shared)
                    summary = replace(summary, branch=_end(messages, at).branch, basis=head.summary_basis)
            except TimeoutError as exc:
                if not limit.expired():
                    raise
                if not written:  # every retry would pay for the same call again
                    raise ModelUnavailable("no complete summary in the time that is left") from exc
                return Summarized(written, end, False)
            if not await self.session.add_summary(summary, at, draft=draft):
                # Another run has summarized these turns, or the session has changed. A rebuild then publishes nothing.
                return Summarized(written, end, not draft)
            previous, end, written = summary, summary.end_turn_number, written + 1
            if written == most:
                return Summarized(written, end, end == last)
        return Summarized(written, end, True)

    async def _turns_after(self, at: Place, end: int, last: int) -> Sequence[SessionMessage]:
        """Read the next turns to summarize, some at a time. Turns whose messages are all deleted are passed over."""
        for first in range(end + 1, last + 1, TURNS_PER_READ):
            until = at.up_to(min(first + TURNS_PER_READ - 1, last))
            if messages := await self.session.path(until, first=first):
                return messages
        return ()

    async def _fold(
        self, previous: RollingSummary | None, turns: Sequence[PastTurn], prompt: SharedPrompt | None
    ) -> RollingSummary:
        """Fold the turns after the previous summary into it, in as many calls as they need.

        Raises a `ModelError` if any of its model calls fails: a partial summary is not used.
        """
        content, tokens = "", 0
        if prompt is not None:
            content, tokens = await self._summary(prompt.provider, prompt.summary_request)
        # Without it, or if the model has answered the conversation, or called a tool.
        calls = () if content else _calls(turns, self._max_tokens)
        content = content or (self._cut(previous.content) if previous else "")
        for messages in calls:
            request = ModelRequest(
                instructions=self.overrides.instructions or prompts.SUMMARIZE,
                messages=[ChatMessage.user(prompts.as_lines(messages, previous_summary=content or None))],
                overrides=self.overrides,
                user_id=self.session.user_id,
            )
            content, tokens = await self._summary(self.provider, request)
            if not content:
                raise EmptyAnswer("the model returned no summary")
        return RollingSummary(
            content=content,
            token_count=tokens or window.estimate_text(content),
            start_turn_number=previous.end_turn_number + 1 if previous else 1,
            end_turn_number=turns[-1].number,
        )

    async def _summary(self, provider: LLMProvider, request: ModelRequest) -> tuple[str, int]:
        completion = await metered(self.meter, provider, request, purpose="summary", note_cost=self.note_cost)
        return self._cut(completion.usable_text), completion.usage.output_tokens

    def _cut(self, content: str) -> str:
        """Cut a summary to half of a call's input: the next call needs the rest, and every answer is shown it."""
        return content[: window.characters_of(content, self._max_tokens)]


def _end(messages: Sequence[SessionMessage], at: Place) -> Place:
    """Return the place of the last answer, also if it is deleted."""
    last = messages[-1]
    return last.place if last.role == "assistant" else at.up_to(last.turn_number)


async def metered(
    meter: Meter | None,
    provider: LLMProvider,
    request: ModelRequest,
    *,
    purpose: Purpose,
    note_cost: NoteCost | None = None,
) -> Completion:
    """Complete a request, and report its cost as soon as it is known, whatever becomes of the answer.

    A call that is cancelled is estimated, because the model has read its input. So is one without reported usage, and
    one that failed after its first byte.
    """

    async def count(text: str, reported: Usage = Usage()) -> None:
        output = [TextPart(text=text)] if text else []
        usage = reported if reported.total_tokens else window.estimate_call(request, output)
        if note_cost is not None:
            note_cost(purpose, usage)
        if meter is not None:
            await meter.count(usage)

    cut: list[str] = []
    if meter is not None:
        await meter.before_call()
    try:
        completion = await complete(provider, request, purpose=purpose, on_cut=cut.append)
    except asyncio.CancelledError:
        await count("")
        raise
    finally:
        for text in cut:
            await count(text)
    await count(completion.text, completion.usage)
    return completion


def _calls(turns: Sequence[PastTurn], max_tokens: int) -> Iterator[list[ChatMessage]]:
    """Yield the messages of each model call: a transcript line per message. A line that is too long is split."""
    lines: list[PastTurn] = []
    for turn in turns:
        for message in window.messages_of([turn]):
            text = prompts.spoken(message)
            size = window.characters_of(text, max_tokens)
            split = [text[start : start + size] for start in range(0, len(text), size)]
            lines += [PastTurn(turn.number, (_said(message, part),), window.estimate_text(part)) for part in split]
    for piece in window.pieces(lines, max_tokens):
        yield [message for line in piece for message in line.messages]


def _said(message: ChatMessage, text: str) -> ChatMessage:
    return ChatMessage(role=message.role, parts=[TextPart(text=text)])


async def name_session(
    provider: LLMProvider,
    state: SessionState,
    overrides: Overrides = Overrides(),
    *,
    meter: Meter | None = None,
    note_cost: NoteCost | None = None,
) -> str:
    """Return a short name for a session. If the model times out, the name is the first words."""
    turns = state.turns[-RECENT_TURNS:] if state.summary else state.turns[:1]
    messages = [_said(message, prompts.spoken(message)[:MAX_CHARACTERS]) for message in window.messages_of(turns)]
    summary = {"summary": state.summary.content[:MAX_CHARACTERS]} if state.summary else {}
    if messages or summary:
        try:
            async with asyncio.timeout(NAME_SECONDS):
                request = ModelRequest(
                    instructions=overrides.instructions or prompts.NAME_CHAT,
                    messages=[ChatMessage.user(prompts.as_lines(messages, **summary))],
                    overrides=overrides,
                )
                completion = await metered(meter, provider, request, purpose="name", note_cost=note_cost)
            if name := prompts.clean_name(completion.usable_text):
                return name
        except (ModelError, TimeoutError) as exc:
            logger.warning("model gave no name", extra={"cause": type(exc).__name__})
    words = next((text for text in (*(message.text for message in messages), *summary.values()) if text), "")
    return prompts.name_from_words(words)
