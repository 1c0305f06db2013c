"""One running turn: a task of its own, from the stored question to the stored answer. Responses only read it."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from omniagent.ai import prompts
from omniagent.ai.context import RunContext
from omniagent.ai.result import RunResult
from omniagent.aio import both, cancelled, retry_once, within
from omniagent.errors import AnswerTooLong, OmniAgentError, TurnInProgress
from omniagent.messages import (
    ChatMessage,
    DataPart,
    FinishReason,
    Part,
    StepPart,
    StopReason,
    TextPart,
    ToolPart,
    steering_of,
)
from omniagent.protocol import events, sse
from omniagent.session import window
from omniagent.session.manager import SessionMessage, TurnStart, message_id_of, slot_of
from omniagent.team_code import team_code
from omniagent.tracing import Span, bind_context, session_state, turn_ended, turn_state
from omniagent.turns.assignment import Assignment
from omniagent.turns.conclusion import Conclusion, SideWork
from omniagent.turns.event_log import EventLog
from omniagent.turns.hooks import call_back
from omniagent.turns.keeper import LeaseKeeper
from omniagent.turns.lease import MAX_CHUNK_BYTES, InboxMessage, Renewal
from omniagent.turns.recorder import AnswerRecorder
from omniagent.turns.replay import BEGUN, HANDED_OVER, keep_steps
from omniagent.turns.setup import TurnPlan, TurnSetup
from omniagent.turns.tool_loop import AnswerWork, Ending, HandOver, Progress, ToolLoop

logger = logging.getLogger(__name__)


class Turn:
    """Runs to its end, independent of its readers. `stop()` ends it early and keeps its text."""

    def __init__(self, setup: TurnSetup, assignment: Assignment, keeper: LeaseKeeper, span: Span) -> None:
        self.message_id = message_id_of(assignment.turn_id)
        self._setup = setup
        self._assignment = assignment
        self._plan = assignment.plan
        self._dead = dead = assignment.dead
        self._keeper = keeper
        self._span = span
        self._log = EventLog(dead.frames if dead is not None else ())
        recorder = AnswerRecorder if dead is None else dead.recorder
        self._recorder = recorder(self._log.push, self._note)
        self._loop = ToolLoop(
            setup,
            self._recorder,
            self._compose,
            self._before_tools,
            joining=self._joining,
            progress=_progress(self._plan),
            is_closing=self._is_closing,
        )
        self._side = SideWork(setup, assignment, keeper)
        self._context: RunContext | None = None
        self._work: AnswerWork | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._concluded: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()

    async def begin(self) -> None:
        """Start the turn. Returns when the user's message is durable: only then may a reader see the stream."""
        self._task = asyncio.create_task(self._live(), name=f"turn {self._assignment.turn_id}")
        first: list[asyncio.Future[Any]] = [self._task, self._begun]
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if self._begun.done():
                # A turn that has begun must end in order: it holds the session and may already be writing.
                self.stop("cancelled")
                await asyncio.wait([self._task])
            else:
                await cancelled(self._task)
            raise
        if self._task.done():
            await self._task

    @property
    def has_begun(self) -> bool:
        """Whether the user's message is durable. From then on, the turn itself releases its claim and its slot."""
        return self._begun.done() and not self._begun.cancelled()

    def stop(self, reason: StopReason) -> None:
        """End the turn early and keep its text. Does nothing if it is already ending."""
        if self._work is not None:
            self._work.stop(reason)

    def shut_down(self) -> None:
        self.stop("shutdown")
        self._side.shut_down()

    async def ended(self) -> None:
        """Wait until all work of the turn has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def frames(self) -> AsyncIterator[bytes]:
        return self._log.read_frames()

    async def result(self) -> RunResult:
        """Wait until the answer is stored. Cancelling the waiter does not cancel the turn."""
        return await asyncio.shield(self._concluded)

    async def _live(self) -> None:
        session = self._setup.session
        session.open_turns.add(self)
        try:
            with bind_context(session_id=session.session_id, user_id=session.user_id, turn=self._plan.number):
                self._span.set_content(input=self._plan.text)
                work = await self._begin()
                ending = await work.ending()
                if ending is None:
                    await self._hand_over(work)
                    return
                result, leaves_messages = await self._finish(work, ending)
                self._concluded.set_result(result)
                await self._side.finish(result, self._context, leaves_messages=leaves_messages)
        except BaseException as exc:
            self._span.error(exc)
            if self.has_begun and not self._concluded.done():
                self._concluded.set_exception(exc)
                self._concluded.exception()  # otherwise asyncio warns about an unretrieved exception
            raise
        finally:
            if self.has_begun:
                self._span.end()
            session.open_turns.discard(self)

    async def _begin(self) -> AnswerWork:
        """Store the user's message in parallel with the first model call. Tools wait until it is stored."""
        session, plan = self._setup.session, self._plan
        self._start_stream()
        self._work = work = AnswerWork(self._loop, self._answer(), self._assignment.limit)
        self._keeper.watch(self._on_renewal)
        self._keeper.notice.give()
        start = TurnStart(
            self._assignment.turn_id,
            plan.number,
            plan.message_id,
            [TextPart(text=plan.text)],
            plan.again,
            was_posted=self._assignment.was_posted,
            waited=plan.waited,
            seen_turn_id=plan.seen_turn_id,
            attempt=self._assignment.attempt,
        )
        try:
            if not self._keeper.claim.question:  # otherwise notice was given with the claim
                await self._keeper.notice.given()  # first: the watch that led here ends when the turn begins
            await session.begin_turn(start)
        except BaseException:
            await work.cancel()
            raise
        if self._dead is None:  # a turn that is taken over has been running all along
            session_state("idle" if plan.waited is None else "waiting", "running")
            turn_state("planned" if plan.continued is None else "waiting", "running")
        self._begun.set_result(None)
        if self._dead is None:
            self._keeper.attach(self._log)
        else:
            self._keeper.attach(self._log, logged=len(self._dead.frames), next_chunk=self._dead.next_chunk)
        self._side.summary.start()
        return work

    def _take_up(self, answer: SessionMessage) -> None:
        """Continue a waiting answer: log what it had shown before, then emit the new results to all readers."""
        from omniagent.turns.replay import CONTINUED, emit_result
        from omniagent.turns.waiting import take_up  # needed only for a turn that waited

        answered = take_up(self._recorder, answer)
        self._log.mark_continued(CONTINUED)
        for part in answered:
            if part.done:
                emit_result(self._recorder, part)
            else:
                self._recorder.tool_decided(part.call_id, part.request)

    def _start_stream(self) -> None:
        """Push the start of the answer, unless the dead turn's log already has it."""
        if self._dead is not None and self._dead.has_started:
            return
        if self._dead is None or self._dead.begun_at is None:
            self._note({BEGUN: time.time(), "message": self._keeper.claim.message_id})
        metadata = {"sessionId": self._setup.session.session_id, "turnNumber": self._plan.number}
        if self._plan.previous is not None:
            self._log.withhold_start()
        self._log.push(events.Start(self.message_id, metadata))
        if self._plan.continued is not None:
            self._take_up(self._plan.continued)
        if self._plan.kept:
            with suppress(AnswerTooLong):
                keep_steps(self._recorder, self._plan.kept)
        for part in steering_of(self._plan.previous.parts if self._plan.previous is not None else ()):
            if part.message_id not in self._joined:
                self._recorder.steering(part.message_id, part.text)  # had joined the previous answer

    def _note(self, note: dict[str, Any]) -> None:
        """Write a note to the log. One that cannot be written is dropped: only a takeover would read it."""
        with suppress(TypeError, ValueError):
            frame = sse.encode_note(note)
            if len(frame) <= MAX_CHUNK_BYTES:
                self._log.note(frame)

    async def _before_tools(self) -> None:
        """Wait until the user's message is durable and the log records which tools are about to run."""
        await asyncio.shield(self._begun)
        await self._keeper.checkpoint()

    async def _hand_over(self, work: AnswerWork) -> None:
        """Leave the turn to another process. Streams here end without `finish`, and their readers resume."""
        limit, turn_id, attempt = self._assignment.limit, self._assignment.turn_id, self._keeper.claim.attempt
        if self._loop.progress.has_moved:  # otherwise it counts as a death, and the number of deaths is limited
            calls = "open" if work.has_open_calls else "closed"
            self._note({HANDED_OVER: attempt, "calls": calls, "at": time.time()})

        async def let_go() -> None:
            await self._keeper.hand_over(limit.closing_seconds(self._keeper.release_seconds))
            logger.info("turn handed over", extra={"turn_id": turn_id, "attempt": attempt})
            self._log.close()
            self._concluded.set_exception(
                TurnInProgress("The answer is still being written. Send the same request again.")
            )
            self._concluded.exception()  # otherwise asyncio warns about an unretrieved exception

        await both(let_go(), self._side.hand_over())  # the next process starts while this one ends its lease

    async def _finish(self, work: AnswerWork, ending: Ending) -> tuple[RunResult, bool]:
        """Conclude the turn. Whatever fails, the stream is ended and the session is released.

        Returns the result, and whether messages are left in the inbox.
        """
        conclusion = Conclusion(
            self._setup,
            self._assignment,
            recorder=self._recorder,
            log=self._log,
            progress=self._loop.progress,
            summary=self._side.summary,
        )
        taken: list[str] = []
        try:
            self._keeper.flush_soon()
            result = await conclusion.store(ending)
            if result.stored:
                taken = [self._keeper.claim.message_id, self._plan.message_id, *result.message.steering_ids]
        except Exception as exc:
            logger.exception("turn not concluded")
            result = conclusion.failed(exc)
        finally:
            self._log.end()
            try:
                # Release the session before the readers see the end: they may send the next message at once.
                leaves_messages = await retry_once(lambda: self._give_back(taken))
            finally:
                self._log.close()
        turn_ended(
            "stopping" if work.stop_reason else "running",
            result.status,
            finish_reason=result.finish_reason,
            stop_reason=work.stop_reason,
        )
        session_state("running", "waiting" if result.status == "waiting" else "idle")
        self._span.set_content(output=result.text)
        return result, leaves_messages

    async def _answer(self) -> FinishReason:
        if self._assignment.refusal is not None:
            raise self._assignment.refusal
        # Deps, instructions and providers are a team's code.
        with team_code("the agent or its provider failed", OmniAgentError, passes=(OmniAgentError, HandOver)):
            return await self._generated()

    async def _generated(self) -> FinishReason:
        await asyncio.sleep(0)  # the message's write is sent first, and stored while the model's request is built
        setup, agent = self._setup, self._setup.agent
        self._context = context = RunContext(
            user=setup.session.user,
            category=setup.session.category,
            session_id=setup.session.session_id,
            turn_id=self.message_id,
            turn_number=self._plan.number,
            query=self._plan.text,
            deps=await agent.open_deps(),
            sink=self._show_data,
            loop=asyncio.get_running_loop(),
            is_continued=self._plan.continued is not None,
            now=datetime.now(UTC) if self._dead is None else self._dead.now,
        )
        if self._dead is None or not self._dead.was_asked:
            await call_back(agent.callbacks.on_start, context)
        instructions = await agent.instructions_for(context)
        return await self._loop.run(context, instructions, self._tool_seconds, self._dead)

    def _show_data(self, part: DataPart, transient: bool) -> None:
        """Record a tool's emitted data. If it does not fit, log that: there may be no caller to raise to."""
        try:
            self._recorder.data(part, transient)
        except AnswerTooLong:
            logger.warning("emitted data does not fit into the answer", extra={"data_name": part.name})

    def _compose(self, answer: Sequence[Part]) -> list[ChatMessage]:
        """Return the model's messages: the summary, the newest turns that fit, the question, the answer so far."""
        if answer:
            self._keeper.flush_now()  # log the tools' results in parallel with the model call
        settings, summary = self._setup.settings, self._assignment.state.summary
        limits = window.Limits(settings.context_max_turns, settings.context_max_tokens)
        question = ChatMessage.user(self._plan.text)
        messages = window.compose(self._assignment.state.before(self._plan.number), limits, question, answer)
        if not self._plan.text:  # the question of a continued answer was deleted
            messages.remove(question)
        return [prompts.summary_message(summary.content), *messages] if summary else messages

    async def _give_back(self, taken: Sequence[str]) -> bool:
        """Release the slot, then the session, whose next turn needs a slot. Returns whether messages are left."""
        limit = self._assignment.limit
        await self._withdraw(limit.closing_seconds(self._keeper.release_seconds))
        return await self._keeper.finish(limit.closing_seconds(self._keeper.release_seconds), taken)

    async def _withdraw(self, seconds: float) -> None:
        """Release the user's slot. If that fails, it is found to be stale when another turn needs a slot."""
        session = self._setup.session
        try:
            await within(seconds, session.withdraw(slot_of(session.key, self._assignment.turn_id)))
        except Exception as exc:
            logger.warning("slot of the turn not withdrawn", extra={"cause": f"{type(exc).__name__}: {exc}"})

    def _tool_seconds(self) -> float:
        """Return the time left for a tool. A turn that can be handed over sets no limit: it cuts the tool off."""
        limit = self._assignment.limit
        return math.inf if self._setup.may_hand_over(limit) else limit.time_left()

    def _is_closing(self) -> bool:
        return self._work is not None and self._work.is_closing

    def _on_renewal(self, renewal: Renewal) -> None:
        if renewal.state == "lost":
            self.stop("lost")
        elif renewal.state == "stopping" or any(m.stopped and self._answers(m.id) for m in renewal.inbox):
            self.stop("cancelled")

    def _answers(self, message_id: str) -> bool:
        """Whether a message of the inbox is this turn's own or has joined it."""
        return message_id == self._keeper.claim.message_id or message_id in self._joined

    @property
    def _joined(self) -> set[str]:
        return {part.message_id for part in steering_of(self._recorder.parts)}

    def _joining(self) -> list[InboxMessage]:
        """Return the inbox messages that join this answer before its next model call."""
        if not self._keeper.inbox:
            return []
        known = self._joined | {self._keeper.claim.message_id, self._plan.message_id}
        return [m for m in self._keeper.inbox if m.steers and not m.stopped and m.id not in known]


def _progress(plan: TurnPlan) -> Progress:
    """Return the progress that a turn starts with: that of a continued answer, or of the kept steps."""
    continued = plan.continued
    if continued is None:
        return Progress(calls_before=sum(isinstance(part, ToolPart) for part in plan.kept))
    return Progress(
        usage=continued.usage,
        usage_before=continued.usage,
        steps=sum(isinstance(part, StepPart) for part in continued.parts),
        calls_before=sum(isinstance(part, ToolPart) for part in continued.parts),
    )
