"""The tool loop: model, tools, model, until there is an answer or the steps are used up."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from omniagent.ai.context import RunContext
from omniagent.ai.providers.llm_provider import (
    ModelFinish,
    ModelReasoning,
    ModelReasoningDone,
    ModelRequest,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
)
from omniagent.ai.providers.model_calls import call_model
from omniagent.errors import EmptyAnswer, InvalidOutput, ModelStreamBroken, StepLimitReached
from omniagent.messages import ChatMessage, FinishReason, Part, SteeringPart, StepPart, TextPart, ToolPart, Usage
from omniagent.session import window
from omniagent.turns.lease import InboxMessage
from omniagent.turns.recorder import MAX_INPUT_CHARS, AnswerRecorder
from omniagent.turns.replay import APPROVED, CALL, COUNTED, STEP
from omniagent.turns.setup import TurnSetup, ensure_not_cancelled
from omniagent.turns.tool_step import ToolStep

if TYPE_CHECKING:
    from omniagent.turns.dead_turn import DeadTurn
    from omniagent.turns.ledger import TurnBudget

ASSUMED_OUTPUT_TOKENS = 1_000
"""Tokens assumed for a model call's output if nothing limits it."""


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
        budget: "TurnBudget | None" = None,
        joining: Callable[[], Sequence[InboxMessage]] = tuple,
        progress: Progress | None = None,
        is_closing: Callable[[], bool] = lambda: False,
    ) -> None:
        self.progress = progress or Progress()
        self._is_closing = is_closing
        self._budget = budget
        self._joining = joining
        self._setup = setup
        self._recorder = recorder
        self._compose = compose
        self._before_tools = before_tools
        self._correction: ChatMessage | None = None

    async def run(
        self,
        context: RunContext,
        instructions: str,
        time_left: Callable[[], float],
        dead: "DeadTurn | None" = None,
    ) -> FinishReason:
        """Run the loop and return why the model stopped. Raises a `ModelError` if there is no answer.

        It continues after the last completed step of a `dead` turn. A turn that waited begins with its approved calls.
        """
        settings = self._setup.settings
        tools = partial(ToolStep, self._setup.agent, self._recorder, context, settings, time_left)
        if approved := self._recorder.approved_calls:
            self._recorder.note({APPROVED: len(approved)})
            await self._before_tools()
            in_doubt = dead is not None and dead.has_approved
            self.progress.tool_errors += await tools().run_approved(approved, in_doubt=in_doubt)
        reason = await self._catch_up(dead, tools) if dead is not None else None
        while reason is None:
            if self.progress.steps >= settings.max_steps:
                raise StepLimitReached(f"no answer after {settings.max_steps} steps")
            ensure_not_cancelled()
            self._checkpoint()
            for message in self._joining():
                self._recorder.steering(message.id, message.text)
            reason = await self._end_step(*await self._step(self._request(instructions)), tools)
        return reason

    async def _catch_up(self, dead: "DeadTurn", tools: Callable[[], ToolStep]) -> FinishReason | None:
        """Take over a dead process's steps. The tools of its last step may have been running."""
        progress, parts = self.progress, self._recorder.parts
        progress.usage += sum(dead.calls, dead.cut_call or Usage())
        if dead.first_token_at is not None:
            progress.first_token_at = time.monotonic() - (time.time() - dead.first_token_at)
        steps_before, progress.steps = progress.steps, progress.steps + len(dead.steps)
        progress.tool_errors = sum(isinstance(part, ToolPart) and part.error is not None for part in parts)
        if not dead.steps:
            return None
        *earlier, last = dead.steps
        progress.tool_calls = sum(len(step.calls) for step in earlier)
        for step, text in zip(earlier, _texts_of_steps(parts)[steps_before:], strict=False):
            if not step.calls:
                self._is_accepted(step.reason, text)  # it was rejected, and the model was told why
        return await self._end_step(last.reason, last.calls, tools, in_doubt=not dead.has_open_calls)

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
        # The last message that joined a dead turn has not been answered.
        is_asked = self._joining() or isinstance(self._recorder.parts[-1], SteeringPart)
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
        self.progress.steps += 1
        self._recorder.start_step()
        first_part = len(self._recorder.parts)
        if self._budget is not None:
            most_output = request.overrides.max_output_tokens or ASSUMED_OUTPUT_TOKENS
            await self._budget.before_call(window.estimate_request(request), most_output)
        try:
            finish, calls = await self._stream(request)
        except BaseException as exc:
            is_stopped = isinstance(exc, asyncio.CancelledError)
            self._count(_estimated(request, self._recorder.parts[first_part:], is_stopped=is_stopped))
            raise
        is_counted = finish.usage.total_tokens or self._budget is None
        output = self._recorder.parts[first_part:]
        self._count(finish.usage if is_counted else _estimated(request, output, is_stopped=True))
        if not calls and not any(isinstance(part, TextPart) for part in self._recorder.parts[first_part:]):
            raise EmptyAnswer(f"{self._setup.model} answered nothing ({finish.reason})")
        self._note_end(finish.reason, calls)
        self.progress.has_moved = True
        return finish.reason, calls

    def _checkpoint(self, *, has_open_calls: bool = False) -> None:
        """Hand over if little time is left. A process that has done nothing yet continues."""
        if self.progress.has_moved and self._is_closing():
            raise HandOver(has_open_calls=has_open_calls)

    def _note_end(self, reason: FinishReason, calls: Sequence[ModelToolCall]) -> None:
        """Log the call's tool calls, then the end of the call."""
        for call in calls:
            # Longer arguments are an error, complete or truncated.
            self._recorder.note({CALL: [call.call_id, call.name, call.arguments[: MAX_INPUT_CHARS + 1]]})
        seconds_ago = time.monotonic() - (self.progress.first_token_at or time.monotonic())
        self._recorder.note({STEP: reason, "first": time.time() - seconds_ago})

    def _count(self, usage: Usage) -> None:
        self.progress.usage += usage
        if self._budget is not None:
            self._budget.counted(usage)
        else:
            self._recorder.note({COUNTED: usage.to_dict()})

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
                        recorder.tool_start(event.call_id, event.name)
                    case ModelToolCall():
                        if any(event.call_id == call.call_id for call in calls):
                            raise ModelStreamBroken(f"two tool calls of the id {event.call_id!r} in one answer")
                        recorder.ensure_call(event.call_id, event.name)
                        calls.append(event)
                    case ModelFinish():
                        return event, calls
        raise ModelStreamBroken(f"{self._setup.model}: the stream has no end")

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


def last_text(parts: Sequence[Part]) -> str:
    """Return the last text of an answer, which `Agent(output=…)` validates."""
    return next((part.text for part in reversed(parts) if isinstance(part, TextPart)), "")


def _texts_of_steps(parts: Sequence[Part]) -> list[str]:
    """Return the last text of each step."""
    starts = [index for index, part in enumerate(parts) if isinstance(part, StepPart)]
    return [last_text(parts[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _estimated(request: ModelRequest, output: Sequence[Part], *, is_stopped: bool) -> Usage:
    """Estimate the cost of a call that ended early. The input counts, unless the call itself failed."""
    usage = window.estimate_call(window.estimate_request(request), output)
    return usage if usage.output_tokens or is_stopped else Usage()
