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
from omniagent.ai.result import RunResult
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
from omniagent.turns.engine.ending import Ending, announce, conclude, finish, finish_summary, in_time
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.engine.tool_loop import HandOver, ToolLoop, start_summary
from omniagent.turns.hooks import call_back
from omniagent.turns.journal.records import HandedOver, RunStarted
from omniagent.turns.journal.replay import go_on_with, keep_steps, kept_steps
from omniagent.turns.setup import TimeLimit, TurnSetup
from omniagent.turns.state import Moved, question_of
from omniagent.turns.state_events import Begin, Erase, Event, StopQueued, Withdraw

logger = logging.getLogger(__name__)

MAX_COUNTS, COUNT_SECONDS = 20, 0.05
"""How often, and how far apart, the running turns of a user are counted while others may give way."""


class Turn:
    """Runs to its end, independent of its readers. Its message is durable. Creating it starts it."""

    def __init__(self, run: TurnRun, span: Span) -> None:
        self.message_id = run.turn.id
        self.journal_id = run.turn.journal
        self.turn = run.turn
        """The turn, as this run has taken it."""
        self.stop = run.stop
        self.frames = run.journal.read_frames
        self._run = run
        self._setup = run.setup
        self._span = span
        self._context: RunContext | None = None
        self._concluded: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        self._setup.session.open_turns.add(self)
        self._task = asyncio.create_task(self._live(), name=f"turn {self.message_id}")

    def shut_down(self) -> None:
        self.stop("shutdown")
        if self._run.summary is not None:
            self._run.summary.cancel()

    async def ended(self) -> None:
        """Wait until all work of the turn has ended."""
        await asyncio.wait([self._task])

    async def result(self) -> RunResult:
        """Wait until the answer is stored and `on_finish` has run. Cancelling the waiter does not cancel the turn."""
        return await asyncio.shield(self._concluded)

    async def _live(self) -> None:
        run, session = self._run, self._setup.session
        try:
            with bind_context(session_id=session.session_id, user_id=session.user_id, turn=run.turn.number):
                self._span.set_content(input=run.text)
                if run.draft is None:  # a turn that is taken over has been running all along
                    turn_state("planned" if run.base is None else "waiting", "running")
                self._start_stream()
                start_summary(run)
                ending = await self._ending()
                if isinstance(ending, HandedOver):
                    await self._hand_over(ending)
                    return
                result = await conclude(run, ending)
                run.journal.close(has_end=True)
                seconds = run.limit.closing_seconds(session.settings.lease_seconds)
                await retry_once(lambda: run.keeper.finish(seconds))
                turn_ended(result.status, finish_reason=result.finish_reason, stop_reason=run.stop_reason)
                self._span.set_content(output=result.text)
                await announce(run, self._context, result)
                self._concluded.set_result(result)
                await finish(run, result)
        except BaseException as exc:
            self._span.error(exc)
            run.keeper.abandon()
            if not self._concluded.done():
                self._concluded.set_exception(exc)
                self._concluded.exception()  # otherwise asyncio warns about an unretrieved exception
            run.journal.close()
            raise
        finally:
            self._span.end()
            session.open_turns.discard(self)

    def _start_stream(self) -> None:
        """Push the start of the answer, unless the journal already has it."""
        run, turn = self._run, self._run.turn
        if run.draft is None:
            run.journal.add(RunStarted(turn.run, turn.attempt, time.time()))
        elif run.draft.has_started:
            return
        metadata = {"sessionId": self._setup.session.session_id, "turnNumber": turn.number}
        run.journal.add(events.Start(turn.id, metadata | {"nodeId": turn.id, "parentId": turn.question}))
        if run.base is not None:
            go_on_with(run.recorder, run.base)
        if run.kept:
            with suppress(AnswerTooLong):
                keep_steps(run.recorder, run.kept)
        for part in steering_of(run.previous.parts if run.previous is not None else ()):
            run.recorder.steering(part.message_id, part.text)  # had joined the previous answer

    async def _ending(self) -> Ending | HandedOver:
        """Generate the answer, until it ends or is stopped, or another process has to continue it."""
        run, limit = self._run, self._run.limit
        task = asyncio.create_task(self._answer(), name="answer")
        seconds = None if limit.deadline is None else max(0.0, limit.time_left())
        ends: list[asyncio.Future[Any]] = [task, run.early_end]
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            run.stop("shutdown")  # the event loop is closing: store what was streamed first
        is_cut = not task.done() and not run.early_end.done() and limit.may_hand_over
        if not task.done() and not is_cut:
            run.stop("deadline")
        if not run.early_end.done():
            run.early_end.set_result(None)
        if not task.done():
            task.cancel()
            await retry_once(lambda: asyncio.wait([task], timeout=STOP_SECONDS))
        if not task.done():
            logger.warning("a tool ignores its cancellation and is left behind")
        if not task.done() or task.cancelled():
            if is_cut:
                return HandedOver(has_open_calls=False, has_moved=run.progress.has_moved)
            return Ending("cancelled", "other", run.stop_reason or "cancelled")
        try:
            return Ending("waiting" if run.recorder.is_waiting else "complete", task.result())
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
        run, agent, session, question = self._run, self._setup.agent, self._setup.session, self._run.question
        begun_at = run.draft.begun_at if run.draft is not None else None
        # Deps, instructions and providers are a team's code.
        with team_code("the agent or its provider failed", OmniAgentError, passes=(OmniAgentError, HandOver)):
            self._context = context = RunContext(
                user=session.user,
                category=session.category,
                session_id=session.session_id,
                turn_id=run.turn.id,
                turn_number=run.turn.number,
                query=run.text,
                parts=question.parts if question is not None else (),
                metadata=question.metadata if question is not None else {},
                deps=await agent.open_deps(),
                sink=self._show_data,
                loop=asyncio.get_running_loop(),
                is_continued=run.base is not None,
                now=datetime.now(UTC) if begun_at is None else datetime.fromtimestamp(begun_at, UTC),
            )
            if run.draft is None or not run.draft.was_asked:
                await call_back(agent.callbacks.on_start, context)
            instructions, run.late_instructions = await agent.prompt_for(context)
            return await ToolLoop(run, context, instructions).run()

    def _show_data(self, part: DataPart, transient: bool) -> None:
        """Record a tool's emitted data. If it does not fit, log that: there may be no caller to raise to."""
        try:
            self._run.recorder.data(part, transient)
        except AnswerTooLong:
            logger.warning("emitted data does not fit into the answer", extra={"data_name": part.name})

    async def _hand_over(self, record: HandedOver) -> None:
        """Leave the turn to another process. Streams here end without `finish`, and their readers resume."""
        run = self._run
        run.journal.add(record)
        await run.keeper.finish(run.limit.closing_seconds(self._setup.session.settings.lease_seconds))
        logger.info("turn handed over", extra={"turn_id": run.turn.id, "attempt": run.turn.attempt})
        run.journal.close()
        self._concluded.set_exception(TurnInProgress("The answer is still being written. Send the same request again."))
        self._concluded.exception()  # otherwise asyncio warns about an unretrieved exception
        await in_time(run, run.setup.hooks.on_work)
        if run.summary is not None:
            await finish_summary(run, run.summary)


async def begin(
    setup: TurnSetup, state: SessionState, run: Run, limit: TimeLimit, *, queued: QueuedMessage | None = None
) -> Turn:
    """Give a message the turn and start it. Raises `TooManyTurns`, and `Moved` if the session has moved on.

    `queued` is the message as it was in line: if the user's limit keeps its turn from running, it goes back.
    """
    turn_id, message = new_id(), run.message
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
    with turn_span(setup, turn.number) as span:
        if run.closes is not None or queued is not None or state.head.version == 0:
            await _check_limit(setup)  # a refusal must leave no trace: closed requests, a turn others saw, a session
        head = await setup.apply(state.head, Begin(turn, run.closes))
        try:
            await _check_limit(setup, head.turn)
        except OmniAgentError:
            await _withdraw(setup, state.head, head, turn, queued)
            raise
        if run.closes is not None:
            state = state.with_answer(run.closes)
        kept = kept_steps(run.previous, regenerates=run.regenerates) if run.previous is not None else ()
        return Turn(TurnRun(setup, head, state, limit, message, previous=run.previous, kept=kept), span)


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
        await setup.session.erase_some()


async def begin_queued(setup: TurnSetup, head: SessionHead, limit: TimeLimit) -> Turn | None:
    """Begin the turn of the first message in line. None if it was stopped. Raises `TooManyTurns` and `Moved`."""
    message = head.queue[0]
    if message.is_stopped:
        await setup.apply(head, StopQueued(message.id))
        return None
    state = await setup.session.load(message)
    if state.head.version != head.version:
        raise Moved("the session has changed since")
    setup.meter.forget()
    run = Run(question_of(message, state.after, state.spot, message.node))
    # Its waiting time does not count as turn time.
    return await begin(setup, state, run, replace(limit, started_at=time.monotonic()), queued=message)
