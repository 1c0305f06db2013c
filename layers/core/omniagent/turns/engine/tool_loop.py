"""The tool loop: model, tools, model, until there is an answer or the steps are used up; and the task that runs it.

`AnswerWork` reports how the answer ended: completed, stopped early with its partial text, or handed over.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from omniagent.ai.context import RunContext
from omniagent.ai.providers.llm_provider import (
    ModelFinish,
    ModelReasoning,
    ModelReasoningDone,
    ModelRequest,
    ModelSource,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
)
from omniagent.ai.providers.model_calls import call_model
from omniagent.aio import STOP_SECONDS, cancelled, ensure_not_cancelled
from omniagent.errors import (
    BudgetExceeded,
    ConfigurationError,
    EmptyAnswer,
    InvalidOutput,
    ModelError,
    ModelStreamBroken,
    OmniAgentError,
    StepLimitReached,
)
from omniagent.messages import (
    ChatMessage,
    FinishReason,
    Part,
    SourcePart,
    Status,
    SteeringPart,
    StepPart,
    StopReason,
    TextPart,
    ToolPart,
    Usage,
    plain_text,
)
from omniagent.session import window
from omniagent.session.ids import new_id
from omniagent.session.live import QueuedMessage
from omniagent.tracing import turn_state
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.engine.tool_step import ToolStep
from omniagent.turns.journal.recorder import MAX_INPUT_CHARS, MAX_SOURCE_CHARS, AnswerRecorder
from omniagent.turns.journal.records import ApprovedStarted, Counted, StepEnded
from omniagent.turns.setup import TurnSetup

if TYPE_CHECKING:
    from omniagent.turns.journal.fold import Draft

logger = logging.getLogger(__name__)

MAX_NAME_CHARS = 256
"""Maximum length of a tool call's name and id. No tool has a longer one, and its event must fit into one chunk."""


class HandOver(Exception):
    """The loop stopped at a point where another process can continue it."""

    def __init__(self, *, has_open_calls: bool) -> None:
        super().__init__()
        self.has_open_calls = has_open_calls
        """The tools of its last step have not been started."""


@dataclass(slots=True)
class Progress:
    """The loop's progress. It stays readable when the loop is stopped or fails."""

    usage: Usage = Usage()
    steps: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    first_token_at: float | None = None
    output: Any = None
    is_waiting: bool = False
    """The last step has calls that wait for an approval or a client tool."""
    usage_before: Usage = Usage()
    """The part of `usage` from before the turn waited."""
    has_moved: bool = False
    """This process has completed a model call or tools."""
    calls_before: int = 0
    """The tool calls from before the turn waited. `tool_calls` and `tool_errors` are those of this run."""


class ToolLoop:
    """Answers one message. The recorder has the answer, even if the loop does not complete.

    `before_tools` returns when the user's message is durable and the log records which tools are about to run.
    """

    def __init__(
        self,
        setup: TurnSetup,
        recorder: AnswerRecorder,
        compose: Callable[[Sequence[Part]], list[ChatMessage]],
        before_tools: Callable[[], Awaitable[None]],
        *,
        joining: Callable[[], Awaitable[Sequence[QueuedMessage]]],
        progress: Progress | None = None,
        is_closing: Callable[[], bool] = lambda: False,
    ) -> None:
        self.progress = progress or Progress()
        self._is_closing = is_closing
        self._joining = joining
        self._setup = setup
        self._recorder = recorder
        self._compose = compose
        self._before_tools = before_tools
        self._correction: ChatMessage | None = None

    def may_hand_over(self, limit: TimeLimit) -> bool:
        """Whether another process may continue the loop if it runs out of time in this one."""
        return self._setup.may_hand_over(limit)

    def seal(self) -> None:
        """Close the answer. What an abandoned tool still records is ignored."""
        self._recorder.seal()

    async def run(
        self,
        context: RunContext,
        instructions: str,
        time_left: Callable[[], float],
        draft: "Draft | None" = None,
    ) -> FinishReason:
        """Run the loop and return why the model stopped. Raises a `ModelError` if there is no answer.

        It continues after the last completed step of a turn whose process died. A turn that waited begins with its
        approved calls.
        """
        settings = self._setup.settings
        tools = partial(ToolStep, self._setup.agent, self._recorder, context, settings, time_left)
        if approved := self._recorder.approved_calls:
            in_doubt = draft is not None and draft.has_approved
            self._recorder.note(ApprovedStarted())
            await self._before_tools()
            self.progress.tool_errors += await tools().run_approved(approved, in_doubt=in_doubt)
        reason = await self._catch_up(draft, tools) if draft is not None else None
        while reason is None:
            if self.progress.steps >= settings.max_steps:
                raise StepLimitReached(f"no answer after {settings.max_steps} steps")
            ensure_not_cancelled()
            self._checkpoint()
            await self._take_joining()
            reason = await self._end_step(*await self._step(self._request(instructions)), tools)
        return reason

    async def _take_joining(self) -> bool:
        """Record the messages that join the answer before its next model call. Returns whether there are any."""
        messages = await self._joining()
        for message in messages:
            self._recorder.steering(message.id, message.text)
        return bool(messages)

    async def _catch_up(self, draft: "Draft", tools: Callable[[], ToolStep]) -> FinishReason | None:
        """Take over a dead process's steps. The tools of its last step may have been running."""
        progress, parts = self.progress, self._recorder.parts
        progress.usage += sum(draft.calls, Usage())
        if draft.first_token_at is not None:
            progress.first_token_at = time.monotonic() - (time.time() - draft.first_token_at)
        steps_before, progress.steps = progress.steps, progress.steps + len(draft.steps)
        progress.tool_errors = sum(isinstance(part, ToolPart) and part.error is not None for part in parts)
        if not draft.steps:
            return None
        *earlier, last = draft.steps
        progress.tool_calls = sum(len(step.calls) for step in earlier)
        for step, text in zip(earlier, _texts_of_steps(parts)[steps_before:], strict=False):
            if not step.calls:
                self._is_accepted(step.reason, text)  # it was rejected: restores the correction for the model
        calls = [ModelToolCall(*call) for call in last.calls]
        return await self._end_step(last.reason, calls, tools, in_doubt=not draft.has_open_calls)

    async def _end_step(
        self,
        reason: FinishReason,
        calls: Sequence[ModelToolCall],
        tools: Callable[[], ToolStep],
        *,
        in_doubt: bool = False,
    ) -> FinishReason | None:
        """Run the tools of a step. Returns the reason if the step is the last one."""
        if calls:
            ensure_not_cancelled()
            self._checkpoint(has_open_calls=True)
            await self._before_tools()
            ensure_not_cancelled()
            calls_before = self.progress.tool_calls + self.progress.calls_before
            calls_left = self._setup.settings.max_tool_calls_per_turn - calls_before
            self.progress.tool_calls += len(calls)
            step = tools()
            self.progress.tool_errors += await step.run(calls, calls_left, in_doubt=in_doubt)
            self.progress.is_waiting = step.waits
            self.progress.has_moved = self.progress.has_moved or not in_doubt
        self._recorder.finish_step()
        if self.progress.is_waiting:
            return "tool-calls"
        if calls or not self._is_accepted(reason, last_text(self._recorder.parts)):
            return None
        if self.progress.steps >= self._setup.settings.max_steps:
            return reason
        # A message that joined a dead turn last has not been answered.
        is_asked = isinstance(self._recorder.parts[-1], SteeringPart) or await self._take_joining()
        return None if is_asked else reason

    def _request(self, instructions: str) -> ModelRequest:
        setup = self._setup
        messages = self._compose(self._recorder.parts)
        return ModelRequest(
            instructions=instructions,
            messages=[*messages, self._correction] if self._correction else messages,
            tools=setup.agent.tool_specs(),
            overrides=setup.overrides,
            output=setup.agent.output_format(),
            cache_key=setup.session.key,
            user_id=setup.session.user_id,
        )

    async def _step(self, request: ModelRequest) -> tuple[FinishReason, list[ModelToolCall]]:
        await self._setup.meter.before_call()
        self.progress.steps += 1
        self._recorder.start_step()
        first_part = len(self._recorder.parts)
        try:
            finish, calls = await self._stream(request)
        except BaseException as exc:
            is_stopped = isinstance(exc, asyncio.CancelledError)
            await self._count(_estimated(request, self._recorder.parts[first_part:], is_stopped=is_stopped))
            raise
        output = self._recorder.parts[first_part:]
        await self._count(finish.usage if finish.usage.total_tokens else _estimated(request, output, is_stopped=True))
        if not calls and not any(isinstance(part, TextPart) for part in output):
            raise EmptyAnswer(f"{self._setup.model} answered nothing ({finish.reason})")
        self._note_end(finish.reason, calls)
        self.progress.has_moved = True
        return finish.reason, calls

    def _checkpoint(self, *, has_open_calls: bool = False) -> None:
        """Hand over if little time is left. A process that has done nothing yet continues."""
        if self.progress.has_moved and self._is_closing():
            raise HandOver(has_open_calls=has_open_calls)

    def _note_end(self, reason: FinishReason, calls: Sequence[ModelToolCall]) -> None:
        """Record the end of a model call with its tool calls."""
        # Longer arguments are an error, complete or truncated.
        written = [(call.call_id, call.name, call.arguments[: MAX_INPUT_CHARS + 1]) for call in calls]
        seconds_ago = time.monotonic() - (self.progress.first_token_at or time.monotonic())
        self._recorder.note(StepEnded(reason, written, time.time() - seconds_ago))

    async def _count(self, usage: Usage) -> None:
        self.progress.usage += usage
        self._recorder.note(Counted(usage.to_dict()))
        await self._setup.meter.count(usage)

    async def _stream(self, request: ModelRequest) -> tuple[ModelFinish, list[ModelToolCall]]:
        calls: list[ModelToolCall] = []
        recorder = self._recorder
        async with aclosing(call_model(self._setup.provider, request, purpose="answer")) as model_events:
            async for event in model_events:
                match event:
                    case ModelText():
                        self._note_first_token()
                        recorder.text(event.text)
                    case ModelToolDelta():
                        recorder.tool_delta(event.call_id, event.text)
                    case ModelReasoning():
                        self._note_first_token()
                        recorder.reasoning(event.text)
                    case ModelReasoningDone():
                        recorder.seal_reasoning(event.provider_data)
                    case ModelToolStart():
                        _check_name(event)
                        recorder.tool_start(event.call_id, event.name)
                    case ModelToolCall():
                        _check_name(event)
                        if any(event.call_id == call.call_id for call in calls):
                            raise ModelStreamBroken(f"two tool calls of the id {event.call_id!r} in one answer")
                        recorder.ensure_call(event.call_id, event.name)
                        calls.append(event)
                    case ModelSource():
                        recorder.source(_source_part(event))
                    case ModelFinish():
                        return event, calls
                    case _:
                        raise _no_event(self._setup.model, event)
        raise ModelStreamBroken(f"{self._setup.model}: the stream has no end: no ModelFinish came")

    def _is_accepted(self, reason: FinishReason, text: str) -> bool:
        """Validate the answer of an agent with `output`. The model may correct it once."""
        if self._setup.agent.output is None:
            return True
        try:
            self.progress.output = self._setup.agent.parse_output(text)
        except InvalidOutput as exc:
            if self._correction is not None or reason != "stop":
                raise
            self._correction = ChatMessage.user(f"{exc} Answer again, with the corrected JSON only.")
            return False
        return True

    def _note_first_token(self) -> None:
        if self.progress.first_token_at is None:
            self.progress.first_token_at = time.monotonic()


def _check_name(call: ModelToolStart | ModelToolCall) -> None:
    if max(len(call.name), len(call.call_id)) > MAX_NAME_CHARS:
        raise ModelStreamBroken(f"a tool call whose name or id is longer than {MAX_NAME_CHARS} characters")


def _source_part(source: ModelSource) -> SourcePart:
    """Return a source as it is stored, short enough for one event."""
    names = {name: text and plain_text(text[:MAX_SOURCE_CHARS]) for name, text in asdict(source).items()}
    return SourcePart(source_id=new_id(), **{**names, "url": source.url})


def _no_event(model: str, value: object) -> ConfigurationError:
    hint = "yield ModelText(…) and the like, and ModelFinish(…) last"
    return ConfigurationError(f"{model}: the provider yielded {value!r:.100}: {hint}")


def last_text(parts: Sequence[Part]) -> str:
    """Return the last text of an answer, which `Agent(output=…)` validates."""
    return next((part.text for part in reversed(parts) if isinstance(part, TextPart)), "")


def _texts_of_steps(parts: Sequence[Part]) -> list[str]:
    """Return the last text of each step."""
    starts = [index for index, part in enumerate(parts) if isinstance(part, StepPart)]
    return [last_text(parts[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _estimated(request: ModelRequest, output: Sequence[Part], *, is_stopped: bool) -> Usage:
    """Estimate the cost of a call without reported usage. The input counts, unless the call itself failed."""
    usage = window.estimate_call(window.estimate_request(request), output)
    return usage if usage.output_tokens or is_stopped else Usage()


@dataclass(frozen=True, slots=True)
class Ending:
    """How the answer ended."""

    status: Status
    reason: FinishReason
    stop_reason: StopReason | None = None
    error: OmniAgentError | None = None


class AnswerWork:
    """The task that generates the answer. It can be stopped, and ends at its deadline."""

    def __init__(self, loop: ToolLoop, answer: Coroutine[Any, Any, FinishReason], limit: TimeLimit) -> None:
        self._loop = loop
        self._limit = limit
        self._task = asyncio.create_task(answer, name="answer")
        self._stopped = asyncio.Event()
        self._is_cut = False
        self.stop_reason: StopReason | None = None
        self.has_open_calls = False
        """After a hand-over: the tools of the last step have not been started."""

    @property
    def is_closing(self) -> bool:
        """Whether no new work may start here, because another process will continue the turn."""
        return self._limit.is_closing and self.stop_reason is None and self._loop.may_hand_over(self._limit)

    def stop(self, reason: StopReason) -> None:
        """End the answer early and keep its text. Does nothing if it is already ending."""
        if self._may_be_ended():
            turn_state("running", "stopping", stop_reason=reason)
            self.stop_reason = reason
            self._end_early()

    async def ending(self) -> Ending | None:
        """Wait for the end and return how it ended: exactly one of complete, waiting, cancelled, failed.

        None if another process continues the answer.
        """
        task, timer = self._task, self._deadline_timer()
        try:
            await self._wait()
        except asyncio.CancelledError:
            # The event loop is closing: store what was streamed first.
            self.stop("shutdown")
            await asyncio.wait([task], timeout=STOP_SECONDS)
        finally:
            if timer is not None:
                timer.cancel()
        if not task.done() or task.cancelled():
            return None if self._is_cut else Ending("cancelled", "other", self.stop_reason or "cancelled")
        try:
            return Ending("waiting" if self._loop.progress.is_waiting else "complete", task.result())
        except HandOver as exc:
            self.has_open_calls = exc.has_open_calls
            return None
        except (ModelError, BudgetExceeded) as exc:
            logger.warning("turn failed", extra={"code": exc.code, "cause": str(exc)})
            return Ending("failed", "error", error=exc)
        except OmniAgentError as exc:
            logger.exception("turn failed")
            return Ending("failed", "error", error=exc)

    async def _wait(self) -> None:
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait([self._task, stopped], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([self._task], timeout=STOP_SECONDS)
        finally:
            await cancelled(stopped)
        if not self._task.done():
            logger.warning("a tool ignores its cancellation and is left behind")
            if not self._is_cut:
                self._loop.seal()

    def _deadline_timer(self) -> asyncio.TimerHandle | None:
        if self._limit.deadline is None:
            return None
        return asyncio.get_running_loop().call_later(max(0.0, self._limit.time_left()), self._time_is_over)

    def _time_is_over(self) -> None:
        """At the deadline, stop the answer, or cut it off where it is for another process to continue."""
        if not self._loop.may_hand_over(self._limit):
            self.stop("deadline")
        elif self._may_be_ended():
            self._is_cut = True
            self._end_early()

    def _may_be_ended(self) -> bool:
        return not self._task.done() and self.stop_reason is None

    def _end_early(self) -> None:
        self._stopped.set()
        self._task.cancel()
