"""The end of a turn: store the answer, then announce it."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from omniagent.ai.result import RunResult
from omniagent.ai.schema import json_output
from omniagent.aio import retry_once, within
from omniagent.errors import AnswerTooLong, OmniAgentError, StorageRejected, StorageUnavailable, TurnLost
from omniagent.messages import FinishReason, Status, StopReason
from omniagent.protocol import events
from omniagent.session.live import SessionMessage
from omniagent.team_code import team_code
from omniagent.tracing import current_traceparent
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.state_events import End, Wait

logger = logging.getLogger(__name__)

MAX_OUTPUT_CHARS = 50_000
"""Maximum length of a typed answer in the message's metadata. Its text has a longer one too."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the answer ended."""

    status: Status
    reason: FinishReason
    stop_reason: StopReason | None = None
    error: OmniAgentError | None = None


async def conclude(run: TurnRun, ending: Ending) -> RunResult:
    """Store the answer and add the events that end the stream, whatever fails."""
    if ending.status == "waiting" and await run.keeper.is_stopped():
        ending = Ending("cancelled", "other", "cancelled")
    answer = _closed(run, ending)
    try:
        answer = await retry_once(lambda: _stored(run, answer, ending))
    except Exception as exc:
        error = exc if isinstance(exc, OmniAgentError) else OmniAgentError(f"{type(exc).__name__}: {exc}")
        logger.exception("answer not stored; the journal keeps it for the next process")
        run.journal.add(events.Error(error.public))
        return _result(run, answer, "error", error)
    if answer.status != ending.status:  # it was reduced
        ending = replace(ending, status="failed", reason="error", error=AnswerTooLong())
    if ending.stop_reason in ("cancelled", "deadline", "shutdown"):
        run.journal.add(events.Abort(ending.stop_reason))
    run.journal.add(events.Finish(ending.reason, dict(answer.metadata)))
    run.journal.add(events.DataSession(_session_data(run, answer)))
    if ending.error is not None:
        run.journal.add(events.Error(ending.error.public))
    return _result(run, answer, ending.reason, ending.error, stored=True)


def _closed(run: TurnRun, ending: Ending) -> SessionMessage:
    """Close the answer for good. A failed one gets the fallback text."""
    recorder, turn = run.recorder, run.turn
    with suppress(AnswerTooLong):
        if ending.status == "failed":
            recorder.add_paragraph(run.setup.agent.fallback)
        for message in turn.joined:  # it joined, and no model call followed
            recorder.steering(message.id, message.text)
    recorder.close(waiting=ending.status == "waiting")
    metadata, usage = _metadata(run, ending), run.progress.usage
    return turn.answer(recorder.parts, ending.status, metadata, usage=usage, trace=current_traceparent())


async def _stored(run: TurnRun, answer: SessionMessage, ending: Ending) -> SessionMessage:
    """Store the answer, with retries while there is time. If the store rejects it, it is reduced once."""
    if ending.stop_reason == "lost":
        raise TurnLost("another process has taken over the turn")
    give_up_at, pause, is_reduced = run.limit.give_up_at, 0.1, False
    while True:
        try:
            return await within(give_up_at - time.monotonic(), _end_turn(run, answer))
        except StorageRejected:
            if is_reduced:
                raise
            logger.exception("answer cannot be stored as it is")
            answer, is_reduced = _reduced(answer), True
        except TimeoutError as exc:
            raise StorageUnavailable("no time left") from exc
        except StorageUnavailable as exc:
            if time.monotonic() + pause >= give_up_at:
                raise
            logger.warning("answer not stored yet", extra={"cause": str(exc)})
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)


async def _end_turn(run: TurnRun, answer: SessionMessage) -> SessionMessage:
    """End the turn with this answer, or let it wait. Returns the stored answer."""
    event = (Wait if answer.status == "waiting" else End)(run.turn.run, answer)
    if (after := await run.setup.settle(lambda _: event, run.head)) is not None:
        run.head = after
        return answer
    stored = await run.setup.session.node(answer.id)
    if stored is None or stored.run != run.turn.run:
        raise TurnLost(f"turn {answer.id} was taken over, or its session is deleted")
    return stored  # an earlier try succeeded, and its reply was lost


def _result(
    run: TurnRun, answer: SessionMessage, reason: FinishReason, error: OmniAgentError | None, *, stored: bool = False
) -> RunResult:
    return RunResult(
        session_id=run.setup.session.session_id,
        message=answer,
        status=answer.status,
        finish_reason=reason,
        output=run.progress.output,
        error=error,
        stored=stored,
        tool_calls=run.progress.tool_calls,
        tool_errors=run.progress.tool_errors,
        usage_before=run.progress.usage_before,
        is_continued=run.base is not None,
    )


def _session_data(run: TurnRun, answer: SessionMessage) -> dict[str, Any]:
    task, summarized_to = run.summary, run.state.summarized_to
    if task is not None and task.done() and not task.cancelled() and task.exception() is None:
        summarized_to = max(summarized_to, task.result().end_turn_number)
    return {
        "sessionId": run.setup.session.session_id,
        "turnNumber": answer.turn_number,
        "messageId": answer.id,
        "userMessageId": run.turn.message_id,
        "status": answer.status,
        "name": run.state.head.name,
        "usage": run.progress.usage.to_dict(),
        "summarizedTo": summarized_to,
        **({"output": answer.metadata["output"]} if "output" in answer.metadata else {}),
    }


def _metadata(run: TurnRun, ending: Ending) -> Mapping[str, Any]:
    progress, previous, started_at = run.progress, run.previous, run.limit.started_at
    before: Mapping[str, Any] = run.base.metadata if run.base is not None else {}
    first_token_ms = progress.first_token_at and round((progress.first_token_at - started_at) * 1000)
    has_output = ending.status == "complete" and progress.output is not None
    optional = {
        "output": _shown_output(progress.output) if has_output else None,
        "firstTokenMs": before.get("firstTokenMs", first_token_ms),
        "replaces": previous.id if previous is not None else before.get("replaces"),
        "stopReason": ending.stop_reason,
        "errorCode": ending.error and ending.error.code,
        "errorText": ending.error and ending.error.public,
    }
    return {
        "sessionId": run.setup.session.session_id,
        "turnNumber": run.turn.number,
        "status": ending.status,
        "finishReason": ending.reason,
        "model": progress.models[-1] if progress.models else run.setup.model,
        **({"models": progress.models} if len(progress.models) > 1 else {}),
        "stepCount": progress.steps,
        "usage": progress.usage.to_dict(),
        "durationMs": before.get("durationMs", 0) + round((time.monotonic() - started_at) * 1000),
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
    with suppress(OmniAgentError), team_code("typed answer not serialized"):
        shown = json_output(output)
        return shown if len(json.dumps(shown)) <= MAX_OUTPUT_CHARS else None
    return None
