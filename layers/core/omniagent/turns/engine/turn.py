"""One running turn: a task of its own, until its answer is stored. Responses only read it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime

from omniagent.ai.context import RunContext
from omniagent.ai.result import RunResult
from omniagent.aio import retry_once
from omniagent.errors import AnswerTooLong, OmniAgentError, TurnInProgress
from omniagent.messages import DataPart, FinishReason, StopReason, steering_of
from omniagent.protocol import events
from omniagent.session.live import LiveTurn
from omniagent.team_code import team_code
from omniagent.tracing import Span, bind_context, session_state, turn_ended, turn_state
from omniagent.tracing.states import TurnPhase
from omniagent.turns.engine.answer_work import AnswerWork, Ending
from omniagent.turns.engine.ending import Conclusion
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.engine.side_work import SideWork
from omniagent.turns.engine.tool_loop import HandOver, ToolLoop
from omniagent.turns.hooks import call_back
from omniagent.turns.journal.records import HandedOver, RunStarted
from omniagent.turns.journal.replay import keep_steps

logger = logging.getLogger(__name__)


class Turn:
    """Runs to its end, independent of its readers. `stop()` ends it early and keeps its text."""

    def __init__(self, run: TurnRun, span: Span) -> None:
        self._run = run
        self._setup = run.setup
        self._span = span
        self.message_id = run.turn.id
        self.journal_id = run.turn.journal
        self._side = SideWork(run)
        self._work: AnswerWork | None = None
        self._task: asyncio.Task[None] | None = None
        self._concluded: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()

    @property
    def turn(self) -> LiveTurn:
        """The turn, as this run has taken it."""
        return self._run.turn

    def start(self) -> "Turn":
        """Start the turn. Its message is durable."""
        self._setup.session.open_turns.add(self)
        self._task = asyncio.create_task(self._live(), name=f"turn {self.message_id}")
        return self

    def stop(self, reason: StopReason) -> None:
        """End the turn early and keep its text. Does nothing if it is already ending."""
        if self._work is not None:
            self._work.stop(reason)
        else:
            self._run.stop_reason = reason

    def shut_down(self) -> None:
        self.stop("shutdown")
        self._side.summary.give_up()

    async def ended(self) -> None:
        """Wait until all work of the turn has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def frames(self) -> AsyncIterator[bytes]:
        return self._run.journal.read_frames()

    async def result(self) -> RunResult:
        """Wait until the answer is stored and `on_finish` has run. Cancelling the waiter does not cancel the turn."""
        return await asyncio.shield(self._concluded)

    async def _live(self) -> None:
        run, session = self._run, self._setup.session
        try:
            with bind_context(session_id=session.session_id, user_id=session.user_id, turn=run.turn.number):
                self._span.set_content(input=run.text)
                if run.draft is None:  # a turn that is taken over has been running all along
                    waited = run.base is not None
                    session_state("waiting" if waited else "idle", "running")
                    turn_state("waiting" if waited else "planned", "running")
                self._start_stream()
                self._work = work = AnswerWork(run, self._answer())
                run.keeper.watch(lambda: self.stop("cancelled"), lambda: self.stop("lost"))
                self._side.summary.start()
                if run.stop_reason is not None:
                    work.stop(run.stop_reason)
                ending = await work.ending()
                if ending is None:
                    await self._hand_over(has_open_calls=work.has_open_calls)
                    return
                result = await self._finish(ending)
                try:
                    await self._side.announce(result)
                finally:
                    self._concluded.set_result(result)
                await self._side.finish(result)
        except BaseException as exc:
            self._span.error(exc)
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
        if run.draft is not None:
            run.journal.when_shown(run.keeper.flush_now)
            if run.draft.has_started:
                return
        else:
            run.journal.note(RunStarted(turn.run, turn.attempt, time.time()))
        metadata = {"sessionId": self._setup.session.session_id, "turnNumber": turn.number}
        run.journal.push(events.Start(turn.id, metadata | {"nodeId": turn.id, "parentId": turn.question}))
        if run.base is not None:
            from omniagent.turns.engine.waiting import go_on_with  # needed only for a turn that waited

            go_on_with(run.recorder, run.base)
        if run.kept:
            with suppress(AnswerTooLong):
                keep_steps(run.recorder, run.kept)
        for part in steering_of(run.previous.parts if run.previous is not None else ()):
            if part.message_id not in run.joined:
                run.recorder.steering(part.message_id, part.text)  # had joined the previous answer

    async def _hand_over(self, *, has_open_calls: bool) -> None:
        """Leave the turn to another process. Streams here end without `finish`, and their readers resume."""
        run = self._run
        run.journal.note(HandedOver(has_open_calls, run.progress.has_moved))
        await run.keeper.finish(run.limit.closing_seconds(self._setup.settings.lease_seconds))
        logger.info("turn handed over", extra={"turn_id": run.turn.id, "attempt": run.turn.attempt})
        run.journal.close()
        self._concluded.set_exception(TurnInProgress("The answer is still being written. Send the same request again."))
        self._concluded.exception()  # otherwise asyncio warns about an unretrieved exception
        await self._side.hand_over()

    async def _finish(self, ending: Ending) -> RunResult:
        """Conclude the turn. Whatever fails, the stream is ended."""
        run, conclusion = self._run, Conclusion(self._run, self._side.summary)
        try:
            run.keeper.flush_soon()
            result = await conclusion.store(ending)
        except Exception as exc:
            logger.exception("turn not concluded")
            result = conclusion.failed(exc)
        finally:
            run.journal.end()
            run.journal.close()
            seconds = run.limit.closing_seconds(self._setup.settings.lease_seconds)
            await retry_once(lambda: run.keeper.finish(seconds))
        before: TurnPhase = "stopping" if run.stop_reason else "running"
        turn_ended(before, result.status, finish_reason=result.finish_reason, stop_reason=run.stop_reason)
        session_state("running", "waiting" if result.status == "waiting" else "idle")
        self._span.set_content(output=result.text)
        return result

    async def _answer(self) -> FinishReason:
        run, agent, session, question = self._run, self._setup.agent, self._setup.session, self._run.question
        begun_at = run.draft.begun_at if run.draft is not None else None
        # Deps, instructions and providers are a team's code.
        with team_code("the agent or its provider failed", OmniAgentError, passes=(OmniAgentError, HandOver)):
            run.context = context = RunContext(
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
            return await ToolLoop(run).run(context, instructions)

    def _show_data(self, part: DataPart, transient: bool) -> None:
        """Record a tool's emitted data. If it does not fit, log that: there may be no caller to raise to."""
        try:
            self._run.recorder.data(part, transient)
        except AnswerTooLong:
            logger.warning("emitted data does not fit into the answer", extra={"data_name": part.name})
