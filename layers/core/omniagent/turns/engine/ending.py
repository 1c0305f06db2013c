"""The end of a turn: store the answer, then announce it."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from omniagent.ai.result import RunResult
from omniagent.ai.schema import json_output
from omniagent.aio import retry_once, within
from omniagent.errors import AnswerTooLong, OmniAgentError, StorageError, StorageRejected, StorageUnavailable, TurnLost
from omniagent.messages import FinishReason, Status
from omniagent.protocol import events
from omniagent.session.live import SessionMessage
from omniagent.tracing import current_traceparent
from omniagent.turns.engine.answer_work import Ending
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.engine.side_work import SummaryBeside
from omniagent.turns.state import End, Wait

logger = logging.getLogger(__name__)

MAX_OUTPUT_CHARS = 50_000
"""Maximum length of a typed answer in the message's metadata. Its text has a longer one too."""


class Conclusion:
    """Stores and announces the end of one turn."""

    def __init__(self, run: TurnRun, summary: SummaryBeside) -> None:
        self._run = run
        self._setup = run.setup
        self._summary = summary

    async def store(self, ending: Ending) -> RunResult:
        """Store the answer and push the events that end the stream."""
        if ending.status == "waiting" and await self._run.keeper.is_stopped():
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
            self._run.recorder.add_paragraph(self._setup.agent.fallback)
        for message in self._run.turn.joined:
            if message.id not in self._run.joined:  # it joined, and no model call followed
                self._run.recorder.steering(message.id, message.text)
        self._run.recorder.seal(waiting=ending.status == "waiting")
        return self._run.turn.answer(
            self._run.recorder.parts,
            ending.status,
            self._metadata(ending),
            usage=self._run.progress.usage,
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
        give_up_at = self._run.limit.give_up_at
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
        run = self._run.turn.run
        event = Wait(run, answer) if answer.status == "waiting" else End(run, answer)
        if (after := await self._setup.settle(self._run.keeper.head, event)) is not None:
            self._run.keeper.head = after
            return answer
        stored = await self._setup.session.node(answer.id)
        if stored is None or stored.run != run:
            raise TurnLost(f"turn {answer.id} was taken over, or its session is deleted")
        return stored  # an earlier try succeeded, and its reply was lost

    def _announce(self, stored: SessionMessage, ending: Ending) -> None:
        """Push the end of the stream."""
        self._run.journal.hold()
        if ending.stop_reason in ("cancelled", "deadline", "shutdown"):
            self._run.journal.push(events.Abort(ending.stop_reason))
        self._run.journal.push(events.Finish(ending.reason, dict(stored.metadata)))
        self._run.journal.push(events.DataSession(self._session_data(stored, ending.status)))
        if ending.error is not None:
            self._run.journal.push(events.Error(ending.error.public))

    def _not_stored(self, answer: SessionMessage, error: OmniAgentError) -> RunResult:
        logger.error("answer not stored; the journal keeps it for the next process", exc_info=error)
        self._run.journal.hold()
        self._run.journal.push(events.Error(error.public))
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
            output=self._run.progress.output,
            error=error,
            stored=stored,
            tool_calls=self._run.progress.tool_calls,
            tool_errors=self._run.progress.tool_errors,
            usage_before=self._run.progress.usage_before,
            is_continued=self._run.base is not None,
        )

    def _session_data(self, stored: SessionMessage, status: Status) -> dict[str, Any]:
        state = self._run.state
        return {
            "sessionId": self._setup.session.session_id,
            "turnNumber": stored.turn_number,
            "messageId": stored.id,
            "userMessageId": self._run.turn.message_id,
            "status": status,
            "name": state.head.name,
            "usage": self._run.progress.usage.to_dict(),
            "summarizedTo": max(state.summarized_to, self._summary.end_turn_number),
            **({"output": stored.metadata["output"]} if "output" in stored.metadata else {}),
        }

    def _metadata(self, ending: Ending) -> Mapping[str, Any]:
        progress, previous, base = self._run.progress, self._run.previous, self._run.base
        started_at = self._run.limit.started_at
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
            "turnNumber": self._run.turn.number,
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
