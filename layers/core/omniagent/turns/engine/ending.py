"""The end of a turn: store the answer, announce it, then wait for the summary and the other work beside it."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from omniagent.ai.context import RunContext
from omniagent.ai.providers.llm_provider import Purpose
from omniagent.ai.result import RunResult
from omniagent.ai.schema import json_output
from omniagent.aio import cancelled, ensure_not_cancelled, retry_once, within
from omniagent.errors import AnswerTooLong, OmniAgentError, StorageError, StorageRejected, StorageUnavailable, TurnLost
from omniagent.messages import FinishReason, Status, Usage, steering_of
from omniagent.protocol import events
from omniagent.session import window
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage
from omniagent.session.summaries import SharedPrompt, Summarized
from omniagent.tracing import current_traceparent
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.engine.answer_work import Ending
from omniagent.turns.engine.assignment import Assignment
from omniagent.turns.engine.keeper import Keeper
from omniagent.turns.engine.tool_loop import Progress
from omniagent.turns.hooks import call_back
from omniagent.turns.journal.live_journal import LiveJournal
from omniagent.turns.journal.recorder import AnswerRecorder
from omniagent.turns.setup import TurnSetup
from omniagent.turns.state import End, Moved, Wait, is_over

logger = logging.getLogger(__name__)

MAX_OUTPUT_CHARS = 50_000
"""Maximum length of a typed answer in the message's metadata. Its text has a longer one too."""


class SummaryBeside:
    """A summary that runs beside the answer and stores itself when it is ready."""

    def __init__(
        self, setup: TurnSetup, assignment: Assignment, turn: LiveTurn, prompt: Callable[[], SharedPrompt | None]
    ) -> None:
        self._setup = setup
        self._state = assignment.state
        self._number = turn.number
        self._at = turn.asked_at
        self._prompt = prompt
        self._task: asyncio.Task[Summarized] | None = None
        self._cost = Usage()
        """Of the model calls so far. Reported after the answer, also if the summary fails or is given up."""
        self._is_given_up = asyncio.Event()
        self.missed = False
        """A due summary was not generated."""

    @property
    def end_turn_number(self) -> int:
        """The last turn that the new summary covers; 0 while there is none."""
        task = self._task
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return 0
        return task.result().end_turn_number

    def start(self) -> None:
        """Start the summary if one is due."""
        before, summarized_to = self._state.before(self._number), self._state.summarized_to
        if window.summary_is_due(before, self._setup.window_limits, summarized_to=summarized_to):
            self._task = asyncio.create_task(self._summarize(), name="summary")

    async def _summarize(self) -> Summarized:
        return await self._setup.summaries(self._note_cost).update(at=self._at, most=1, prompt=self._prompt())

    def _note_cost(self, _: Purpose, usage: Usage) -> None:
        self._cost += usage

    def give_up(self) -> None:
        """Stop waiting for the summary: the process ends."""
        self._is_given_up.set()

    async def finish(self, limit: TimeLimit) -> None:
        """Wait for the summary: one tick if missed summaries are generated elsewhere, otherwise while there is time."""
        task, hooks = self._task, self._setup.hooks
        if task is None:
            return
        left = max(0.0, limit.time_left())
        patience = min(left, self._setup.settings.tick_seconds) if hooks.leaves_summaries else left
        given_up = asyncio.create_task(self._is_given_up.wait())
        try:
            await asyncio.wait(
                [task, given_up],
                timeout=None if patience == float("inf") else patience,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            await cancelled(given_up, *([] if task.done() else [task]))
            hooks.note_cost("summary", self._cost)
        if not task.done() or task.cancelled():
            logger.info("summary left to the queue")
            self.missed = True
        elif (exc := task.exception()) is not None:
            logger.warning("summary failed", extra={"cause": f"{type(exc).__name__}: {exc}"})
            self.missed = True
        else:
            self.missed = not task.result().is_done


CALLBACK_SECONDS = 60.0
"""Timeout of a callback that no reader waits for."""
NAME_SECONDS = 12.0
"""Slightly more than `naming.MAX_SECONDS`, after which the name is made of the first words."""


class SideWork:
    """The work beside and after a turn that no reader waits for: summary, name, callbacks."""

    def __init__(
        self,
        setup: TurnSetup,
        assignment: Assignment,
        keeper: Keeper,
        prompt: Callable[[], SharedPrompt | None],
    ) -> None:
        self.summary = SummaryBeside(setup, assignment, keeper.turn, prompt)
        self._setup = setup
        self._assignment = assignment
        self._keeper = keeper

    def shut_down(self) -> None:
        """Stop waiting for work that another process can do."""
        self.summary.give_up()

    async def hand_over(self) -> None:
        """Have another process go on with the turn. Then finish the summary."""
        await self._in_time(self._setup.hooks.on_work)
        await self.summary.finish(self._assignment.limit)

    async def finish(self, result: RunResult, context: RunContext | None) -> None:
        """Do the work after the answer. Its readers have already seen the end."""
        head = self._keeper.head
        is_free = head.turn is None or is_over(head, self._setup.session.now())
        if result.stored and head.queue and is_free:
            await self._in_time(self._setup.hooks.on_work)
        await self._name_session(result)
        await self.summary.finish(self._assignment.limit)
        result = replace(result, summary_missed=self.summary.missed)
        if context is not None:
            await self._in_time(self._setup.agent.callbacks.on_finish, context, result)
        await self._in_time(self._setup.hooks.on_end, result)
        if not result.stored:
            from omniagent.turns.watch.deletion import erase_late_chunks  # needed only after a lost turn

            await self._in_time(erase_late_chunks, self._setup.session, self._setup.registry)

    async def _in_time(self, callback: Callable[..., Awaitable[None]] | None, *arguments: Any) -> None:
        """Await a callback, with a timeout: the end of the turn waits for it."""
        task = asyncio.create_task(call_back(callback, *arguments), name="callback")
        try:
            await asyncio.wait([task], timeout=self._assignment.limit.closing_seconds(CALLBACK_SECONDS))
        finally:
            if not task.done():
                logger.warning("callback takes too long and is cancelled")
                await cancelled(task)

    async def _name_session(self, result: RunResult) -> None:
        """Name a session that has none after a complete answer."""
        name, seconds = self._setup.name, min(NAME_SECONDS, self._assignment.limit.time_left())
        if name is None or self._assignment.state.head.name or result.status != "complete" or seconds <= 0:
            return
        try:
            await within(seconds, name())
        except (Exception, asyncio.CancelledError) as exc:  # a team's provider may raise anything
            ensure_not_cancelled()
            logger.warning("session not named", extra={"cause": f"{type(exc).__name__}: {exc}"})


class Conclusion:
    """Stores and announces the end of one turn."""

    def __init__(
        self,
        setup: TurnSetup,
        assignment: Assignment,
        keeper: Keeper,
        *,
        recorder: AnswerRecorder,
        journal: LiveJournal,
        progress: Progress,
        summary: SummaryBeside,
    ) -> None:
        self._setup = setup
        self._assignment = assignment
        self._keeper = keeper
        self._turn = keeper.turn
        self._recorder = recorder
        self._journal = journal
        self._progress = progress
        self._summary = summary

    async def store(self, ending: Ending) -> RunResult:
        """Store the answer and push the events that end the stream."""
        if ending.status == "waiting" and await self._keeper.is_stopped():
            ending = Ending("cancelled", "other", "cancelled")
        answer = self._answer(ending)
        if ending.stop_reason == "lost":
            return self._not_stored(answer, TurnLost("another process has taken over the turn"))
        try:
            stored = await retry_once(lambda: self._stored(answer))
        except StorageError as exc:
            return self._not_stored(answer, exc)
        if stored.status != ending.status:  # it was reduced
            ending = replace(ending, status="failed", reason="error", error=AnswerTooLong())
        self._announce(stored, ending)
        return self._result(stored, ending.status, ending.reason, error=ending.error)

    def failed(self, exc: Exception) -> RunResult:
        """End the stream of a turn that could not be concluded."""
        error = OmniAgentError(f"{type(exc).__name__}: {exc}")
        error.__cause__ = exc
        return self._not_stored(self._answer(Ending("failed", "error", error=error)), error)

    def _answer(self, ending: Ending) -> SessionMessage:
        """Close the answer for good. A failed one gets the fallback text."""
        if ending.status == "failed":
            self._recorder.add_paragraph(self._setup.agent.fallback)
        known = {part.message_id for part in steering_of(self._recorder.parts)}
        for message in self._turn.joined:
            if message.id not in known:  # it joined, and no model call followed
                self._recorder.steering(message.id, message.text)
        self._recorder.seal(waiting=ending.status == "waiting")
        return self._turn.answer(
            self._recorder.parts,
            ending.status,
            self._metadata(ending),
            usage=self._progress.usage,
            trace=current_traceparent(),
        )

    async def _stored(self, answer: SessionMessage) -> SessionMessage:
        """Store the answer, with retries while there is time. If the store rejects it, it is reduced once."""
        try:
            return await self._store_in_time(answer)
        except StorageRejected:
            logger.exception("answer cannot be stored as it is")
            return await self._store_in_time(_reduced(answer))

    async def _store_in_time(self, answer: SessionMessage) -> SessionMessage:
        give_up_at = self._assignment.limit.give_up_at
        pause = 0.1
        while True:
            try:
                return await within(give_up_at - time.monotonic(), self._end_turn(answer))
            except TimeoutError as exc:
                raise StorageUnavailable("no time left") from exc
            except StorageUnavailable as exc:
                if time.monotonic() + pause >= give_up_at:
                    raise
                logger.warning("answer not stored yet", extra={"cause": str(exc)})
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)

    async def _end_turn(self, answer: SessionMessage) -> SessionMessage:
        """End the turn with this answer, or let it wait. Returns the stored answer."""
        run = self._turn.run
        event = Wait(run, answer) if answer.status == "waiting" else End(run, answer)
        head: SessionHead | None = self._keeper.head
        while head is not None:
            try:
                after = await self._setup.apply(head, event)
            except Moved:
                break
            if after is not None:
                self._keeper.head = after
                return answer
            head = await self._setup.session.head()
        stored = await self._setup.session.node(answer.id)
        if stored is None or stored.run != run:
            raise TurnLost(f"turn {answer.id} was taken over, or its session is deleted")
        return stored  # an earlier try succeeded, and its reply was lost

    def _announce(self, stored: SessionMessage, ending: Ending) -> None:
        """Push the end of the stream."""
        self._journal.hold()
        if ending.stop_reason in ("cancelled", "deadline", "shutdown"):
            self._journal.push(events.Abort(ending.stop_reason))
        self._journal.push(events.Finish(ending.reason, dict(stored.metadata)))
        self._journal.push(events.DataSession(self._session_data(stored, ending.status)))
        if ending.error is not None:
            self._journal.push(events.Error(ending.error.public))

    def _not_stored(self, answer: SessionMessage, error: OmniAgentError) -> RunResult:
        logger.error("answer not stored; the journal keeps it for the next process", exc_info=error)
        self._journal.hold()
        self._journal.push(events.Error(error.public))
        return self._result(answer, answer.status, "error", error=error, stored=False)

    def _result(
        self,
        message: SessionMessage,
        status: Status,
        reason: FinishReason,
        *,
        error: OmniAgentError | None,
        stored: bool = True,
    ) -> RunResult:
        return RunResult(
            session_id=self._setup.session.session_id,
            message=message,
            status=status,
            finish_reason=reason,
            output=self._progress.output,
            error=error,
            stored=stored,
            tool_calls=self._progress.tool_calls,
            tool_errors=self._progress.tool_errors,
            usage_before=self._progress.usage_before,
            is_continued=self._assignment.base is not None,
        )

    def _session_data(self, stored: SessionMessage, status: Status) -> dict[str, Any]:
        state = self._assignment.state
        return {
            "sessionId": self._setup.session.session_id,
            "turnNumber": stored.turn_number,
            "messageId": stored.id,
            "userMessageId": self._turn.message_id,
            "status": status,
            "name": state.head.name,
            "usage": self._progress.usage.to_dict(),
            "summarizedTo": max(state.summarized_to, self._summary.end_turn_number),
            **({"output": stored.metadata["output"]} if "output" in stored.metadata else {}),
        }

    def _metadata(self, ending: Ending) -> Mapping[str, Any]:
        progress, previous, base = self._progress, self._assignment.previous, self._assignment.base
        started_at = self._assignment.limit.started_at
        before: Mapping[str, Any] = base.metadata if base is not None else {}
        first_token_ms = progress.first_token_at and _milliseconds(progress.first_token_at - started_at)
        has_output = progress.output is not None
        optional = {
            "output": _shown_output(progress.output) if ending.status == "complete" and has_output else None,
            "firstTokenMs": before.get("firstTokenMs", first_token_ms),
            "replaces": previous.id if previous is not None else before.get("replaces"),
            "stopReason": ending.stop_reason,
            "errorCode": ending.error and ending.error.code,
            "errorText": ending.error and ending.error.public,
        }
        return {
            "sessionId": self._setup.session.session_id,
            "turnNumber": self._turn.number,
            "status": ending.status,
            "finishReason": ending.reason,
            "model": progress.models[-1] if progress.models else self._setup.model,
            **({"models": progress.models} if len(progress.models) > 1 else {}),
            "stepCount": progress.steps,
            "usage": progress.usage.to_dict(),
            "durationMs": before.get("durationMs", 0) + _milliseconds(time.monotonic() - started_at),
            **{name: value for name, value in optional.items() if value is not None},
        }


def _reduced(answer: SessionMessage) -> SessionMessage:
    from omniagent.turns.engine.reduced_parts import reduced_parts  # needed only for an answer that the store rejects

    error = AnswerTooLong()
    failed = {"status": "failed", "finishReason": "error", "errorCode": error.code, "errorText": error.public}
    metadata = {**answer.metadata, **failed}
    return replace(answer, parts=reduced_parts(answer.parts), status="failed", metadata=metadata)


def _shown_output(output: BaseModel) -> Any:
    """Return a typed answer as JSON for the message's metadata, unless it is too large for an event."""
    shown = json_output(output)
    return shown if len(json.dumps(shown)) <= MAX_OUTPUT_CHARS else None


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
