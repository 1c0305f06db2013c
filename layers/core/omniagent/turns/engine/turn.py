"""One running turn: a task of its own, until its answer is stored. Responses only read it."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from omniagent.ai import prompts
from omniagent.ai.context import RunContext
from omniagent.ai.providers.llm_provider import Overrides
from omniagent.ai.result import RunResult
from omniagent.aio import retry_once
from omniagent.errors import AnswerTooLong, OmniAgentError, TurnInProgress
from omniagent.messages import (
    ChatMessage,
    DataPart,
    FinishReason,
    Part,
    StepPart,
    StopReason,
    ToolPart,
    steering_of,
)
from omniagent.protocol import events
from omniagent.session import window
from omniagent.session.live import LiveTurn, QueuedMessage
from omniagent.session.summaries import SharedPrompt
from omniagent.team_code import team_code
from omniagent.tracing import Span, bind_context, session_state, turn_ended, turn_state
from omniagent.turns.engine.answer_work import AnswerWork, Ending
from omniagent.turns.engine.assignment import Assignment
from omniagent.turns.engine.ending import Conclusion, SideWork
from omniagent.turns.engine.keeper import Keeper
from omniagent.turns.engine.tool_loop import HandOver, Progress, ToolLoop
from omniagent.turns.hooks import call_back
from omniagent.turns.journal.live_journal import LiveJournal
from omniagent.turns.journal.recorder import AnswerRecorder
from omniagent.turns.journal.records import HandedOver, RunStarted
from omniagent.turns.journal.replay import keep_steps
from omniagent.turns.setup import TurnSetup

logger = logging.getLogger(__name__)


class Turn:
    """Runs to its end, independent of its readers. `stop()` ends it early and keeps its text."""

    def __init__(self, setup: TurnSetup, assignment: Assignment, span: Span) -> None:
        self._setup = setup
        self._assignment = assignment
        self._draft = draft = assignment.draft
        self._span = span
        self._journal = LiveJournal(draft.lines if draft is not None else ())
        self._keeper = Keeper(
            setup, assignment.head, self._journal, next_chunk=draft.next_chunk if draft is not None else 0
        )
        self._turn = self._keeper.turn
        self.message_id = self._turn.id
        self.journal_id = self._turn.journal
        self._recorder = draft.recorder if draft is not None else AnswerRecorder()
        self._recorder.attach(self._journal.push, self._journal.note)
        self._loop = ToolLoop(
            setup,
            self._recorder,
            self._compose,
            self._before_tools,
            joining=self._joining,
            progress=_progress(assignment),
            is_closing=self._is_closing,
        )
        self._side = SideWork(setup, assignment, self._keeper, self._shared_prompt)
        self._context: RunContext | None = None
        self._instructions = ""
        """What the agent's functions say for this turn."""
        self._work: AnswerWork | None = None
        self._stopped_early: StopReason | None = None
        self._task: asyncio.Task[None] | None = None
        self._concluded: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()

    @property
    def turn(self) -> LiveTurn:
        """The turn, as this run has taken it."""
        return self._turn

    def start(self) -> "Turn":
        """Start the turn. Its message is durable."""
        self._setup.session.open_turns.add(self)
        self._task = asyncio.create_task(self._live(), name=f"turn {self._turn.id}")
        return self

    def stop(self, reason: StopReason) -> None:
        """End the turn early and keep its text. Does nothing if it is already ending."""
        if self._work is not None:
            self._work.stop(reason)
        else:
            self._stopped_early = reason

    def shut_down(self) -> None:
        self.stop("shutdown")
        self._side.shut_down()

    async def ended(self) -> None:
        """Wait until all work of the turn has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def frames(self) -> AsyncIterator[bytes]:
        return self._journal.read_frames()

    async def result(self) -> RunResult:
        """Wait until the answer is stored and `on_finish` has run. Cancelling the waiter does not cancel the turn."""
        return await asyncio.shield(self._concluded)

    async def _live(self) -> None:
        session = self._setup.session
        try:
            with bind_context(session_id=session.session_id, user_id=session.user_id, turn=self._turn.number):
                self._span.set_content(input=self._assignment.text)
                if self._draft is None:  # a turn that is taken over has been running all along
                    waited = self._assignment.base is not None
                    session_state("waiting" if waited else "idle", "running")
                    turn_state("waiting" if waited else "planned", "running")
                self._start_stream()
                self._work = work = AnswerWork(self._loop, self._answer(), self._assignment.limit)
                self._keeper.watch(lambda: self.stop("cancelled"), lambda: self.stop("lost"))
                self._side.summary.start()
                if self._stopped_early is not None:
                    work.stop(self._stopped_early)
                ending = await work.ending()
                if ending is None:
                    await self._hand_over(work)
                    return
                result = await self._finish(work, ending)
                try:
                    await self._side.announce(result, self._context)
                finally:
                    self._concluded.set_result(result)
                await self._side.finish(result)
        except BaseException as exc:
            self._span.error(exc)
            if not self._concluded.done():
                self._concluded.set_exception(exc)
                self._concluded.exception()  # otherwise asyncio warns about an unretrieved exception
            self._journal.close()
            raise
        finally:
            self._span.end()
            session.open_turns.discard(self)

    def _start_stream(self) -> None:
        """Push the start of the answer, unless the journal already has it."""
        if self._draft is not None:
            self._journal.when_shown(self._keeper.flush_now)
            if self._draft.has_started:
                return
        else:
            self._journal.note(RunStarted(self._turn.run, self._turn.attempt, time.time()))
        turn = self._turn
        metadata = {"sessionId": self._setup.session.session_id, "turnNumber": turn.number}
        metadata |= {"nodeId": turn.id, "parentId": turn.question}
        previous, base = self._assignment.previous, self._assignment.base
        self._journal.push(events.Start(self.message_id, metadata))
        if base is not None:
            from omniagent.turns.engine.waiting import go_on_with  # needed only for a turn that waited

            go_on_with(self._recorder, base)
        if self._assignment.kept:
            with suppress(AnswerTooLong):
                keep_steps(self._recorder, self._assignment.kept)
        for part in steering_of(previous.parts if previous is not None else ()):
            if part.message_id not in self._joined:
                self._recorder.steering(part.message_id, part.text)  # had joined the previous answer

    async def _before_tools(self) -> None:
        """Wait until the journal says which tools are about to run. Raises if another process has the turn."""
        await self._keeper.checkpoint()

    async def _hand_over(self, work: AnswerWork) -> None:
        """Leave the turn to another process. Streams here end without `finish`, and their readers resume."""
        self._journal.note(HandedOver(work.has_open_calls, self._loop.progress.has_moved))
        await self._keeper.finish(self._assignment.limit.closing_seconds(self._setup.settings.lease_seconds))
        logger.info("turn handed over", extra={"turn_id": self._turn.id, "attempt": self._turn.attempt})
        self._journal.close()
        self._concluded.set_exception(TurnInProgress("The answer is still being written. Send the same request again."))
        self._concluded.exception()  # otherwise asyncio warns about an unretrieved exception
        await self._side.hand_over()

    async def _finish(self, work: AnswerWork, ending: Ending) -> RunResult:
        """Conclude the turn. Whatever fails, the stream is ended."""
        conclusion = Conclusion(
            self._setup,
            self._assignment,
            self._keeper,
            recorder=self._recorder,
            journal=self._journal,
            progress=self._loop.progress,
            summary=self._side.summary,
        )
        try:
            self._keeper.flush_soon()
            result = await conclusion.store(ending)
        except Exception as exc:
            logger.exception("turn not concluded")
            result = conclusion.failed(exc)
        finally:
            self._journal.end()
            self._journal.close()
            seconds = self._assignment.limit.closing_seconds(self._setup.settings.lease_seconds)
            await retry_once(lambda: self._keeper.finish(seconds))
        turn_ended(
            "stopping" if work.stop_reason else "running",
            result.status,
            finish_reason=result.finish_reason,
            stop_reason=work.stop_reason,
        )
        session_state("running", "waiting" if result.status == "waiting" else "idle")
        self._span.set_content(output=result.text)
        return result

    async def _answer(self) -> FinishReason:
        # Deps, instructions and providers are a team's code.
        with team_code("the agent or its provider failed", OmniAgentError, passes=(OmniAgentError, HandOver)):
            return await self._generated()

    async def _generated(self) -> FinishReason:
        setup, agent, draft = self._setup, self._setup.agent, self._draft
        question = self._assignment.question
        begun_at = draft.begun_at if draft is not None else None
        self._context = context = RunContext(
            user=setup.session.user,
            category=setup.session.category,
            session_id=setup.session.session_id,
            turn_id=self.message_id,
            turn_number=self._turn.number,
            query=self._assignment.text,
            parts=question.parts if question is not None else (),
            metadata=question.metadata if question is not None else {},
            deps=await agent.open_deps(),
            sink=self._show_data,
            loop=asyncio.get_running_loop(),
            is_continued=self._assignment.base is not None,
            now=datetime.now(UTC) if begun_at is None else datetime.fromtimestamp(begun_at, UTC),
        )
        if draft is None or not draft.was_asked:
            await call_back(agent.callbacks.on_start, context)
        instructions, self._instructions = await agent.prompt_for(context)
        return await self._loop.run(context, instructions, self._tool_seconds, draft)

    def _show_data(self, part: DataPart, transient: bool) -> None:
        """Record a tool's emitted data. If it does not fit, log that: there may be no caller to raise to."""
        try:
            self._recorder.data(part, transient)
        except AnswerTooLong:
            logger.warning("emitted data does not fit into the answer", extra={"data_name": part.name})

    def _compose(self, answer: Sequence[Part]) -> list[ChatMessage]:
        if answer:
            self._keeper.flush_now()  # write the tools' results in parallel with the model call
        state, message = self._assignment.state, self._assignment.question
        question = ChatMessage(role="user", parts=list(message.parts) if message is not None else [])
        messages = window.compose(
            state.before(self._turn.number),
            self._setup.window_limits,
            question,
            answer,
            instructions=self._instructions,
            summary=prompts.summary_message(state.summary.content) if state.summary else None,
            summarized_to=state.summarized_to,
        )
        if message is None:  # the question of a continued answer was deleted
            messages.remove(question)
        return messages

    def _shared_prompt(self) -> SharedPrompt | None:
        """Return the prompt that a summary may begin with, if it is made by the same model in the same way."""
        agent, state, limits = self._setup.agent, self._assignment.state, self._setup.window_limits
        chosen = self._setup.overrides
        # `extra` may ask for reasoning, which costs more than the cache saves.
        if agent.summary != Overrides() or agent.output is not None or chosen.extra or not self._assignment.text:
            return None
        # Instructions of this turn follow the question, if they are made already.
        *messages, question = (message for message in self._compose(()) if message.role != "system")
        room = limits.max_tokens - window.estimate_parts(question.parts)
        before = state.before(self._turn.number)
        shown = window.window(before, limits, summarized_to=state.summarized_to, room=room)
        request = replace(
            self._loop.request(agent.fixed_instructions, messages), overrides=Overrides(model=chosen.model)
        )
        return SharedPrompt(self._setup.provider, request, shown[0].number) if shown else None

    def _tool_seconds(self) -> float:
        """Return the time left for a tool. A turn that can be handed over sets no limit: it cuts the tool off."""
        limit = self._assignment.limit
        return math.inf if self._setup.may_hand_over(limit) else limit.time_left()

    def _is_closing(self) -> bool:
        return self._work is not None and self._work.is_closing

    @property
    def _joined(self) -> set[str]:
        return {part.message_id for part in steering_of(self._recorder.parts)}

    async def _joining(self) -> Sequence[QueuedMessage]:
        """Return the messages that join this answer before its next model call."""
        return await self._keeper.join(self._joined)


def _progress(assignment: Assignment) -> Progress:
    """Return the progress that a turn starts with: that of an answer that goes on, or of the kept steps."""
    base = assignment.base
    if base is None:
        return Progress(calls_before=sum(isinstance(part, ToolPart) for part in assignment.kept))
    return Progress(
        usage=base.usage,
        usage_before=base.usage,
        steps=sum(isinstance(part, StepPart) for part in base.parts),
        calls_before=sum(isinstance(part, ToolPart) for part in base.parts),
        models=[*(base.metadata.get("models") or filter(None, [base.metadata.get("model")]))],
    )
