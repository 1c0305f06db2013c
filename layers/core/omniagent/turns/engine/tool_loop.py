"""The tool loop: model, tools, model, until there is an answer or the steps are used up. What the model is shown."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, replace

from omniagent.ai.context import RunContext
from omniagent.ai.providers.llm_provider import (
    ModelFinish,
    ModelReasoning,
    ModelReasoningDone,
    ModelReplaced,
    ModelRequest,
    ModelSource,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
    Overrides,
)
from omniagent.ai.providers.model_calls import call_model
from omniagent.aio import ensure_not_cancelled
from omniagent.errors import (
    ConfigurationError,
    EmptyAnswer,
    InvalidOutput,
    ModelStreamBroken,
    StepLimitReached,
)
from omniagent.messages import (
    ChatMessage,
    FinishReason,
    Part,
    ReasoningPart,
    SourcePart,
    SteeringPart,
    TextPart,
    ToolPart,
    Usage,
    plain_text,
)
from omniagent.session import window
from omniagent.session.ids import new_id
from omniagent.session.live import SessionHead
from omniagent.session.summaries import SharedPrompt, Summarized
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.engine.tool_step import ToolStep
from omniagent.turns.journal.readers import Draft
from omniagent.turns.journal.recorder import MAX_INPUT_CHARS, MAX_SOURCE_CHARS
from omniagent.turns.journal.records import ApprovedStarted, Counted, HandedOver, StepEnded, StepWithdrawn
from omniagent.turns.setup import TurnSetup
from omniagent.turns.state_events import Join

MAX_NAME_CHARS = 256
"""Maximum length of a tool call's name and id. No tool has a longer one, and its event must fit into one chunk."""
MAX_REJECTED_CHARS = 20_000
"""Maximum length of an answer that the model is shown to correct it, and of what is wrong with it."""
WHAT_TO_YIELD = "yield ModelText(…) and the like, and ModelFinish(…) last"


class HandOver(Exception):
    """The loop stopped at a point where another process can continue it. Its argument is the record that says so."""


class ToolLoop:
    """Answers one message. The recorder has the answer, even if the loop does not complete."""

    def __init__(self, run: TurnRun, context: RunContext, instructions: str) -> None:
        self._run = run
        self._setup = run.setup
        self._recorder = run.recorder
        self._context = context
        self._instructions = instructions
        self._model = run.setup.model
        """The model that is answering: one of the chain."""
        self._rejected = run.draft.rejected
        """The answer that did not fit the agent's `output`, until another one is accepted."""
        # A message that steers may have got in line while the turn waited: nobody signals it again.
        self._read_mail = -1 if any(message.steers(run.head) for message in run.head.queue) else 0

    async def run(self) -> FinishReason:
        """Run the loop and return why the model stopped. Raises a `ModelError` if there is no answer.

        It continues after the last completed step of a turn whose process died. A turn that waited begins with its
        approved calls.
        """
        draft, max_steps = self._run.draft, self._setup.session.settings.max_steps
        parts = self._recorder.parts if self._run.base is not None else []
        if approved := [part for part in parts if isinstance(part, ToolPart) and part.is_approved]:
            self._recorder.record(ApprovedStarted())
            await self._run.journal.checkpoint()
            await ToolStep(self._run, self._context).run_approved(approved, in_doubt=draft.has_approved)
        reason = await self._catch_up(draft) if draft.steps else None
        while reason is None:
            if self._run.steps >= max_steps:
                raise StepLimitReached(f"no answer after {max_steps} steps")
            await self._show_joined()
            self._checkpoint()
            if answer := self._recorder.parts:
                self._run.journal.wake.set()  # write the tools' results in parallel with the model call
            await self._setup.meter.before_call()
            self._run.steps += 1
            self._recorder.start_step()
            request = model_request(self._run, self._instructions, answer)
            reason = await self._end_step(*await self._step(request))
        return reason

    async def _show_joined(self) -> bool:
        """Record the messages that steer this turn. Returns whether one is new to the answer.

        Those that are in line become part of the turn first, so that a successor finds them.
        """
        run, mail = self._run, self._run.journal.signals.mail
        if mail != self._read_mail:
            self._read_mail = mail
            after = await self._setup.settle(self._join)
            if after is not None and after.turn is not None:
                run.head, run.turn = after, after.turn
        return bool([each for each in run.turn.joined if self._recorder.steering(each.id, each.text)])

    def _join(self, head: SessionHead) -> Join | None:
        steering = tuple(each for each in head.queue if each.steers(head) and not each.is_stopped)
        return Join(self._run.turn.run, steering) if steering else None

    async def _catch_up(self, draft: Draft) -> FinishReason | None:
        """End the last step of a dead process. Its tools may have been running."""
        last, agent = draft.steps[-1], self._setup.agent
        calls = [ModelToolCall(*call) for call in last.calls]
        if not calls and agent.output is not None:
            self._run.output = agent.parse_output(last_text(self._recorder.parts))
        has_open_calls = draft.handed_over is not None and draft.handed_over.has_open_calls
        return await self._end_step(last.reason, calls, in_doubt=not has_open_calls)

    def _checkpoint(self, *, has_open_calls: bool = False) -> None:
        """Go no further if the turn was cancelled. Hand over if little time is left.

        A process that has done nothing yet continues.
        """
        ensure_not_cancelled()
        run, limit = self._run, self._run.limit
        is_closing = limit.may_hand_over and time.monotonic() > limit.closing_at
        if is_closing and run.has_moved and run.stop_reason is None:
            raise HandOver(HandedOver(has_open_calls))

    async def _end_step(
        self, reason: FinishReason, calls: Sequence[ModelToolCall], *, in_doubt: bool = False
    ) -> FinishReason | None:
        """Run the tools of a step. Returns the reason if the step is the last one."""
        if calls:
            self._checkpoint(has_open_calls=True)
            await self._run.journal.checkpoint()
            ensure_not_cancelled()
            await ToolStep(self._run, self._context).run(calls, in_doubt=in_doubt)
            self._run.has_moved = self._run.has_moved or not in_doubt
        self._recorder.finish_step()
        if self._recorder.is_waiting:
            return "tool-calls"
        if calls:
            return None
        if self._run.steps >= self._setup.session.settings.max_steps:
            return reason
        # A message that joined a dead turn last has not been answered.
        is_asked = isinstance(self._recorder.parts[-1], SteeringPart) or await self._show_joined()
        return None if is_asked else reason

    async def _step(self, request: ModelRequest) -> tuple[FinishReason, list[ModelToolCall]]:
        """Call the model, and once more if its answer does not fit the agent's `output`."""
        finish, calls = await self._call(request)
        while not calls and self._setup.agent.output is not None and not self._is_accepted(finish.reason):
            await self._setup.meter.before_call()
            finish, calls = await self._call(request)
        # Longer arguments are an error, complete or truncated.
        written = [(call.call_id, call.name, call.arguments[: MAX_INPUT_CHARS + 1]) for call in calls]
        seconds_ago = time.monotonic() - (self._run.first_token_at or time.monotonic())
        self._recorder.record(StepEnded(finish.reason, written, time.time() - seconds_ago, self._model))
        self._run.models.append(self._model)
        self._run.has_moved = True
        return finish.reason, calls

    async def _call(self, request: ModelRequest) -> tuple[ModelFinish, list[ModelToolCall]]:
        if (rejected := self._rejected) is not None:
            correction = [ChatMessage.assistant(rejected.rejected), ChatMessage.user(rejected.correction)]
            request = replace(request, messages=[*request.messages, *correction])
        self._model = self._setup.model
        try:
            finish, calls = await self._stream(request)
        except BaseException as exc:
            await self._count(request, self._recorder.step_parts, failed=not isinstance(exc, asyncio.CancelledError))
            raise
        output = self._recorder.step_parts
        await self._count(request, output, finish.usage)
        if not calls and not any(isinstance(part, TextPart) for part in output):
            raise EmptyAnswer(f"{self._model} answered nothing ({finish.reason})")
        return finish, calls

    async def _count(
        self, request: ModelRequest, output: Sequence[Part], usage: Usage = Usage(), *, failed: bool = False
    ) -> None:
        """Count what a call cost, estimated if that was not reported: nothing if it failed without any output."""
        if not usage.total_tokens:
            usage = window.estimate_call(request, output)
            usage = usage if usage.output_tokens or not failed else Usage()
        self._run.usage += usage
        self._recorder.record(Counted(usage.to_dict()))
        await self._setup.meter.count(usage)

    async def _stream(self, request: ModelRequest) -> tuple[ModelFinish, list[ModelToolCall]]:
        calls: list[ModelToolCall] = []
        recorder, run = self._recorder, self._run
        async with aclosing(call_model(self._setup.provider, request, purpose="answer")) as model_events:
            async for event in model_events:
                match event:
                    case ModelText() | ModelReasoning():
                        run.first_token_at = run.first_token_at or time.monotonic()
                        recorder.text(event.text, TextPart if isinstance(event, ModelText) else ReasoningPart)
                    case ModelToolDelta():
                        recorder.tool_delta(event.call_id, event.text)
                    case ModelReasoningDone():
                        recorder.seal_reasoning(event.provider_data)
                    case ModelToolStart() | ModelToolCall() if (
                        max(len(event.name), len(event.call_id)) > MAX_NAME_CHARS
                    ):
                        raise ModelStreamBroken(f"a tool call's name or id is longer than {MAX_NAME_CHARS} characters")
                    case ModelToolStart():
                        recorder.tool_start(event.call_id, event.name)
                    case ModelToolCall():
                        if any(event.call_id == call.call_id for call in calls):
                            raise ModelStreamBroken(f"two tool calls of the id {event.call_id!r} in one answer")
                        recorder.tool_start(event.call_id, event.name)
                        calls.append(event)
                    case ModelSource():
                        recorder.source(_source_part(event))
                    case ModelReplaced():
                        calls.clear()
                        await self._replace_model(event.model, request)
                    case ModelFinish():
                        return event, calls
                    case _:
                        raise ConfigurationError(
                            f"{self._setup.model}: the provider yielded {event!r:.100}: {WHAT_TO_YIELD}"
                        )
        raise ModelStreamBroken(f"{self._setup.model}: the stream has no end: no ModelFinish came")

    async def _replace_model(self, model: str, request: ModelRequest) -> None:
        """Withdraw what a model has shown before it failed, and pay for it. None of its tools has run."""
        self._model = model
        if shown := self._recorder.step_parts:
            self._recorder.record(StepWithdrawn())
            await self._count(request, shown, failed=True)
            await self._setup.meter.before_call()

    def _is_accepted(self, reason: FinishReason) -> bool:
        """Validate the answer of an agent with `output`. One that does not fit is withdrawn; one may be corrected."""
        agent, text = self._setup.agent, last_text(self._recorder.parts)
        try:
            self._run.output = agent.parse_output(text)
        except InvalidOutput as exc:
            may_correct = self._rejected is None and reason == "stop"
            # A provider without schemas may never have shown it to the model.
            form = agent.output_format
            schema = json.dumps(form.schema, ensure_ascii=False) if form is not None else ""
            correction = f"{exc} Answer with JSON only, in this schema: {schema}"
            self._rejected = StepWithdrawn(text[:MAX_REJECTED_CHARS], correction[:MAX_REJECTED_CHARS])
            if reason != "content-filter":  # a refusal is shown
                self._recorder.record(self._rejected)
            if not may_correct:
                raise
            return False
        self._rejected = None
        return True


def _source_part(source: ModelSource) -> SourcePart:
    """Return a source as it is stored, short enough for one event."""
    names = {name: text and plain_text(text[:MAX_SOURCE_CHARS]) for name, text in asdict(source).items()}
    return SourcePart(source_id=new_id(), **{**names, "url": source.url})


def last_text(parts: Sequence[Part]) -> str:
    """Return the last text of an answer, which `Agent(output=…)` validates."""
    return next((part.text for part in reversed(parts) if isinstance(part, TextPart)), "")


def model_request(run: TurnRun, instructions: str, answer: Sequence[Part]) -> ModelRequest:
    """Return the next model call: the window of the path, the question and the answer so far.

    The one after it may add messages; all else stays the same.
    """
    setup, state, message = run.setup, run.state, run.question
    question = ChatMessage(role="user", parts=list(message.parts) if message is not None else [])
    messages = window.compose(
        run.past,
        _limits(setup),
        question,
        answer,
        instructions=run.late_instructions,
        summary=state.summary,
    )
    if message is None:  # the question of a continued answer was deleted
        messages.remove(question)
    return ModelRequest(
        instructions=instructions,
        messages=messages,
        tools=setup.agent.tool_specs,
        overrides=setup.overrides,
        output=setup.agent.output_format,
        cache_key=setup.session.key,
        user_id=setup.session.user_id,
    )


def _limits(setup: TurnSetup) -> window.Limits:
    """Return how much of the history the model is shown."""
    settings, size = setup.session.settings, setup.provider.context_window(setup.overrides)
    return window.Limits(settings.context_max_turns, window.token_limit(settings.context_max_tokens, size))


def start_summary(run: TurnRun) -> None:
    """Start the summary beside the answer if one is due."""
    limits, state = _limits(run.setup), run.state
    if window.summary_is_due(run.past, limits, state.summary):
        run.summary = asyncio.create_task(_summarize(run), name="summary")


async def _summarize(run: TurnRun) -> Summarized:
    return await run.setup.summaries().update(at=run.turn.asked_at, most=1, prompt=_shared_prompt(run))


def _shared_prompt(run: TurnRun) -> SharedPrompt | None:
    """Return the prompt that a summary may begin with, if it is made by the same model in the same way."""
    setup, state = run.setup, run.state
    agent, chosen, limits = setup.agent, setup.overrides, _limits(setup)
    # `extra` may ask for reasoning, which costs more than the cache saves.
    if agent.summary != Overrides() or agent.output is not None or chosen.extra or not run.text:
        return None
    request = model_request(run, agent.fixed_instructions, ())
    # Instructions of this turn follow the question, if they are made already.
    *messages, question = (message for message in request.messages if message.role != "system")
    room = limits.max_tokens - window.estimate_parts(question.parts)
    shown = window.window(run.past, limits, state.summary, room=room)
    request = replace(request, messages=messages, overrides=Overrides(model=chosen.model))
    return SharedPrompt(setup.provider, request, shown[0].number) if shown else None
