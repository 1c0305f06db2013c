"""One turn: begun for a message, then a task of its own until its answer is stored. Responses only read it."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from omniagent.ai.context import RunContext
from omniagent.aio import STOP_SECONDS, retry_once
from omniagent.errors import AnswerTooLong, BudgetExceeded, ModelError, OmniAgentError, TooManyTurns, TurnInProgress
from omniagent.messages import DataPart, FinishReason, steering_of
from omniagent.protocol import events
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn, QueuedMessage, SessionHead, SessionState
from omniagent.team_code import team_code
from omniagent.tracing import Span, SpanKind, bind_context, trace_operation, turn_ended, turn_state
from omniagent.tracing.attributes import AGENT_NAME, TURN_NUMBER
from omniagent.turns.decisions import Run
from omniagent.turns.engine.ending import Ending, conclude, finish, finish_summary, in_time
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.engine.tool_loop import HandOver, ToolLoop, start_summary
from omniagent.turns.journal.records import HandedOver, RunStarted
from omniagent.turns.journal.replay import go_on_with, keep_steps, kept_steps
from omniagent.turns.setup import TimeLimit, TurnSetup, call_back
from omniagent.turns.state import Moved, question_of
from omniagent.turns.state_events import Begin, Erase, Event, Withdraw

logger = logging.getLogger(__name__)

MAX_COUNTS, COUNT_SECONDS = 20, 0.05
"""How often, and how far apart, the running turns of a user are counted while others may give way."""


class Turn(TurnRun):
    """Generates the answer, stores it and announces it."""

    async def _live(self) -> None:
        session = self.setup.session
        try:
            with bind_context(session_id=session.session_id, user_id=session.user_id, turn=self.turn.number):
                self.span.set_content(input=self.text)
                if not self.turn.attempt:  # a turn that is taken over has been running all along
                    turn_state("planned" if self.base is None else "waiting", "running")
                self._start_stream()
                start_summary(self)
                ending = await self._ending()
                if isinstance(ending, HandedOver):
                    await self._hand_over(ending)
                    return
                result = await conclude(self, ending)
                seconds = self.limit.closing_seconds(session.settings.lease_seconds)
                self.journal.close(has_end=True)
                await retry_once(lambda: self.journal.finish(seconds))
                turn_ended(result.status, finish_reason=result.finish_reason, stop_reason=self.stop_reason)
                self.span.set_content(output=result.message.text)
                await finish(self, result)
        except BaseException as exc:
            self.span.error(exc)
            self.journal.abandon()
            self._fail(exc)
            self.journal.close()
            raise
        finally:
            self.span.end()
            session.open_turns.discard(self)

    def _start_stream(self) -> None:
        """Push the start of the answer, unless the journal already has it."""
        turn, previous = self.turn, self.previous
        if not turn.attempt:
            self.journal.add(RunStarted(turn.run, turn.attempt, time.time()))
        elif self.draft.has_started:
            return
        metadata = {"sessionId": self.setup.session.session_id, "turnNumber": turn.number}
        self.journal.add(events.Start(turn.id, metadata | {"nodeId": turn.id, "parentId": turn.question}))
        if self.base is not None:
            go_on_with(self.recorder, self.base)
        if previous is not None:
            with suppress(AnswerTooLong):
                keep_steps(self.recorder, kept_steps(previous, regenerates=self.regenerates))
            for part in steering_of(previous.parts):
                self.recorder.steering(part.message_id, part.text)  # had joined the previous answer

    async def _ending(self) -> Ending | HandedOver:
        """Generate the answer, until it ends or is stopped, or another process has to continue it."""
        limit = self.limit
        task = asyncio.create_task(self._answer(), name="answer")
        seconds = None if limit.deadline is None else max(0.0, limit.stop_at - time.monotonic())
        ends: list[asyncio.Future[Any]] = [task, self.early_end]
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.stop("shutdown")  # the event loop is closing: store what was streamed first
        is_cut = not task.done() and not self.early_end.done() and limit.may_hand_over
        if not task.done() and not is_cut:
            self.stop("deadline")
        if not self.early_end.done():
            self.early_end.set_result(None)
        if not task.done():
            task.cancel()
            await retry_once(lambda: asyncio.wait([task], timeout=STOP_SECONDS))
        if not task.done():
            logger.warning("a tool ignores its cancellation and is left behind")
        if not task.done() or task.cancelled():
            if is_cut:
                return HandedOver(has_open_calls=False, has_moved=self.has_moved)
            return Ending("cancelled", "other", self.stop_reason or "cancelled")
        try:
            return Ending("waiting" if self.recorder.is_waiting else "complete", task.result())
        except HandOver as exc:
            record: HandedOver = exc.args[0]
            return record
        except OmniAgentError as exc:
            if isinstance(exc, ModelError | BudgetExceeded):
                logger.warning("turn failed", extra={"code": exc.code, "cause": str(exc)})
            else:
                logger.exception("turn failed")
            return Ending("failed", "error", error=exc)

    async def _answer(self) -> FinishReason:
        agent, session, question, draft = self.setup.agent, self.setup.session, self.question, self.draft
        # Deps, instructions and providers are a team's code.
        with team_code("the agent or its provider failed", OmniAgentError, passes=(OmniAgentError, HandOver)):
            self.context = context = RunContext(
                user=session.user,
                category=session.category,
                session_id=session.session_id,
                turn_id=self.turn.id,
                turn_number=self.turn.number,
                query=self.text,
                parts=question.parts if question is not None else (),
                metadata=question.metadata if question is not None else {},
                deps=await agent.open_deps(),
                sink=self._show_data,
                loop=asyncio.get_running_loop(),
                is_continued=self.base is not None,
                now=datetime.fromtimestamp(draft.begun_at or time.time(), UTC),
            )
            if not draft.was_asked:
                await call_back(agent.callbacks.on_start, context)
            instructions, self.late_instructions = await agent.prompt_for(context)
            return await ToolLoop(self, context, instructions).run()

    def _show_data(self, part: DataPart, transient: bool) -> None:
        """Record a tool's emitted data. If it does not fit, log that: there may be no caller to raise to."""
        try:
            self.recorder.data(part, transient)
        except AnswerTooLong:
            logger.warning("emitted data does not fit into the answer", extra={"data_name": part.name})

    async def _hand_over(self, record: HandedOver) -> None:
        """Leave the turn to another process. Streams here end without `finish`, and their readers resume."""
        self.journal.add(record)
        await self.journal.finish(self.limit.closing_seconds(self.setup.session.settings.lease_seconds))
        logger.info("turn handed over", extra={"turn_id": self.turn.id, "attempt": self.turn.attempt})
        self.journal.close()
        self._fail(TurnInProgress("The answer is still being written. Send the same request again."))
        await in_time(self, self.setup.hooks.on_work)
        if self.summary is not None:
            await finish_summary(self, self.summary)

    def _fail(self, exc: BaseException) -> None:
        """Give those who wait for the result an error."""
        if not self.concluded.done():
            self.concluded.set_exception(exc)
            self.concluded.exception()  # otherwise asyncio warns about an unretrieved exception


async def begin(
    setup: TurnSetup, state: SessionState, run: Run, limit: TimeLimit, *, queued: QueuedMessage | None = None
) -> Turn:
    """Give a message the turn and start it. Raises `TooManyTurns`, and `Moved` if the session has moved on.

    `queued` is the message as it was in line: if the user's limit keeps its turn from running, it goes back.
    """
    turn_id, message = new_id(), run.message
    with turn_span(setup, message.turn_number) as span:
        turn = LiveTurn(
            id=turn_id,
            number=message.turn_number,
            run=new_id(),
            journal=turn_id,
            message_id=message.id,
            since=setup.session.now(),
            message=message if run.is_new else None,
            replaces=run.previous.id if run.previous is not None else None,
            question=message.node,
            branch=state.spot.branch,
            lineage=state.spot.lineage,
        )
        if run.closes is not None or queued is not None or state.head.version == 0:
            await _check_limit(setup)  # a refusal must leave no trace: closed requests, a turn others saw, a session
        head = await setup.apply(state.head, Begin(turn, run.closes))
        try:
            await _check_limit(setup, head.turn)
        except OmniAgentError:
            await _withdraw(setup, state.head, head, turn, queued)
            raise
        if (closed := run.closes) is not None:  # the model reads it as it is now
            messages = [closed if each.node == closed.node else each for each in state.messages]
            state = replace(state, messages=messages)
        return Turn(setup, head, state, limit, span, message, previous=run.previous, regenerates=run.regenerates)


@contextmanager
def turn_span(setup: TurnSetup, turn_number: int) -> Iterator[Span]:
    """Start a run of a turn in its span. The turn ends the span, unless it does not start."""
    attributes = {AGENT_NAME: setup.agent.name, TURN_NUMBER: turn_number}
    span = trace_operation("turn", kind=SpanKind.AGENT, attributes=attributes)
    try:
        with span.resumed():
            yield span
    except BaseException as exc:
        if not isinstance(exc, Moved):
            span.error(exc)
        span.end()
        raise


async def _check_limit(setup: TurnSetup, own: LiveTurn | None = None) -> None:
    """Enforce the limit of running turns. Raises `TooManyTurns`. Dead turns do not count.

    `own` is in its session already, so of those that begin at once, each sees all others. Those that began after
    others give way at once; the first waits until they have.
    """
    limit = setup.session.settings.max_running_turns_per_user
    for _ in range(MAX_COUNTS):
        running = [(key, turn) for key, turn in await setup.session.busy_sessions() if turn and turn.state == "running"]
        if len(running) < limit:
            return
        alive = [turn for key, turn in running if await setup.is_alive(turn, key)]
        if len(alive) < limit:
            return
        if own is None or sum(_order(turn) < _order(own) for turn in alive) >= limit:
            break
        await asyncio.sleep(COUNT_SECONDS)
    raise TooManyTurns


def _order(turn: LiveTurn) -> tuple[int, str]:
    """Return what orders turns by their beginning: in milliseconds, as MongoDB stores times."""
    return int(turn.since.timestamp() * 1000), turn.run


async def _withdraw(
    setup: TurnSetup, before: SessionHead, head: SessionHead, turn: LiveTurn, queued: QueuedMessage | None
) -> None:
    """Take back a turn that may not run, before its first model call. A session that was new is deleted again."""
    if queued is not None:
        signals = await setup.registry.signals(setup.session.key, turn.journal)
        queued = replace(queued, is_stopped=signals.stop)

    def withdrawn(fresh: SessionHead) -> Event:
        is_own = fresh.turn is not None and fresh.turn.run == turn.run
        is_new = before.version == 0 and not fresh.queue and is_own
        return Erase() if is_new else Withdraw(turn.run, queued, before.changed_at)

    after = await setup.settle(withdrawn, head)
    if after is not None and after.is_erased:
        await setup.session.store.erase_some(setup.session.key)


async def begin_queued(setup: TurnSetup, head: SessionHead, limit: TimeLimit) -> Turn:
    """Begin the turn of the first message in line. Raises `TooManyTurns` and `Moved`."""
    message = head.queue[0]
    state = await setup.session.load(message)
    if state.head.version != head.version:
        raise Moved("the session has changed since")
    setup.meter.forget()
    run = Run(question_of(message, state, message.node))
    # Its waiting time does not count as turn time.
    return await begin(setup, state, run, replace(limit, started_at=time.monotonic()), queued=message)
