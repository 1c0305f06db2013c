"""The end of a turn: store the answer, announce it, and finish the work that no reader waits for."""

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from omniagent.ai.result import RunResult
from omniagent.ai.schema import json_output
from omniagent.aio import cancelled, ensure_not_cancelled, retry_once, within
from omniagent.errors import AnswerTooLong, OmniAgentError, StorageUnavailable, TurnLost
from omniagent.messages import FinishReason, Status, StopReason, Usage
from omniagent.protocol import events
from omniagent.session.live import SessionMessage
from omniagent.session.summaries import Summarized
from omniagent.tracing import current_traceparent
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.setup import call_back
from omniagent.turns.state import is_over

logger = logging.getLogger(__name__)

MAX_OUTPUT_CHARS = 50_000
"""Maximum length of a typed answer in the message's metadata, which is an event. Its text has a longer one too."""
STORE_SECONDS_WITHOUT_DEADLINE = 30.0
CALLBACK_SECONDS = 60.0
"""Timeout of a callback that no reader waits for."""
NAMING_SECONDS = 12.0
"""Slightly more than `summaries.NAME_SECONDS`, after which the name is made of the first words."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the answer ended."""

    status: Status
    reason: FinishReason
    stop_reason: StopReason | None = None
    error: OmniAgentError | None = None


async def conclude(run: TurnRun, ending: Ending) -> RunResult:
    """Close the answer, store it and add the events that end the stream, whatever fails.

    A failed answer gets the fallback text.
    """
    if ending.status == "waiting" and await run.journal.is_stopped():
        ending = Ending("cancelled", "other", "cancelled")
    recorder, turn, journal = run.recorder, run.turn, run.journal
    metadata = _metadata(run, ending)
    with suppress(AnswerTooLong):
        if ending.status == "failed":
            recorder.add_paragraph(run.setup.agent.fallback)
        for message in turn.joined:  # it joined, and no model call followed
            recorder.steering(message.id, message.text)
    recorder.close(waiting=ending.status == "waiting")
    values = {"usage": run.usage, "trace": current_traceparent()}
    answer, is_stored = turn.answer(recorder.parts, ending.status, metadata, **values), True
    try:
        answer = await retry_once(lambda: _stored(run, answer, ending))
    except Exception as exc:
        error = exc if isinstance(exc, OmniAgentError) else OmniAgentError(f"{type(exc).__name__}: {exc}")
        logger.exception("answer not stored; the journal keeps it for the next process")
        ending, is_stored = replace(ending, reason="error", error=error), False
    else:
        if answer.status != ending.status:  # it was reduced
            ending = replace(ending, status="failed", reason="error", error=AnswerTooLong())
        if ending.stop_reason in ("cancelled", "deadline", "shutdown"):
            journal.add(events.Abort(ending.stop_reason))
        journal.add(events.Finish(ending.reason, dict(answer.metadata)))
        journal.add(events.DataSession(_session_data(run, answer)))
    if ending.error is not None:
        journal.add(events.Error(ending.error.public))
    return RunResult(
        session_id=run.setup.session.session_id,
        message=answer,
        status=answer.status,
        finish_reason=ending.reason,
        output=run.output,
        error=ending.error,
        stored=is_stored,
        tool_calls=run.tool_calls,
        tool_errors=run.tool_errors,
        usage_before=run.base.usage if run.base is not None else Usage(),
        is_continued=run.base is not None,
    )


async def _stored(run: TurnRun, answer: SessionMessage, ending: Ending) -> SessionMessage:
    """End the turn with this answer, or let it wait, with retries while there is time. Returns the stored answer."""
    if ending.stop_reason == "lost":
        raise TurnLost("another process has taken over the turn")
    give_up_at, pause = run.limit.give_up_at or time.monotonic() + STORE_SECONDS_WITHOUT_DEADLINE, 0.1
    while True:
        try:
            ended = run.setup.end(run.head, run.turn.run, answer)
            after, stored = await within(give_up_at - time.monotonic(), ended)
            if after is not None:
                run.head = after
                return stored
            found = await run.setup.session.node(answer.id)
            if found is not None and found.run == run.turn.run:
                return found  # an earlier try succeeded, and its reply was lost
            raise TurnLost(f"turn {answer.id} was taken over, or its session is deleted")
        except TimeoutError as exc:
            raise StorageUnavailable("no time left") from exc
        except StorageUnavailable as exc:
            if time.monotonic() + pause >= give_up_at:
                raise
            logger.warning("answer not stored yet", extra={"cause": str(exc)})
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)


def _session_data(run: TurnRun, answer: SessionMessage) -> dict[str, Any]:
    task, summary = run.summary, run.state.summary
    summarized_to = summary.end_turn_number if summary is not None else 0
    if task is not None and task.done() and not task.cancelled() and task.exception() is None:
        summarized_to = max(summarized_to, task.result().end_turn_number)
    names = ("sessionId", "turnNumber", "status", "usage", "output")
    return {
        **{name: answer.metadata[name] for name in names if name in answer.metadata},
        "messageId": answer.id,
        "userMessageId": run.turn.message_id,
        "name": run.state.head.name,
        "summarizedTo": summarized_to,
    }


def _metadata(run: TurnRun, ending: Ending) -> Mapping[str, Any]:
    previous, started_at = run.previous, run.limit.started_at
    before: Mapping[str, Any] = run.base.metadata if run.base is not None else {}
    models = [*dict.fromkeys(reversed(run.models))][::-1]  # each once; the last one wrote the last step
    first_token_ms = None
    if run.first_token_at is not None:
        first_token_ms = round((run.first_token_at - started_at) * 1000)
    has_output = ending.status == "complete" and run.output is not None
    output = json_output(run.output) if has_output else None
    optional = {
        "models": models if len(models) > 1 else None,
        "output": output if len(json.dumps(output)) <= MAX_OUTPUT_CHARS else None,
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
        "model": models[-1] if models else run.setup.model,
        "stepCount": run.steps,
        "usage": run.usage.to_dict(),
        "durationMs": before.get("durationMs", 0) + round((time.monotonic() - started_at) * 1000),
        **{name: value for name, value in optional.items() if value is not None},
    }


async def finish(run: TurnRun, result: RunResult) -> None:
    """Announce the answer, whose end readers have seen: have the messages in line answered, and call `on_finish`.

    Then do the work that nobody waits for: name the session, finish the summary, call `on_end`.
    """
    is_free = run.head.turn is None or is_over(run.head, run.setup.session.now())
    if result.stored and run.head.queue and is_free:
        await in_time(run, run.setup.hooks.on_work)
    if run.context is not None:
        await in_time(run, run.setup.agent.callbacks.on_finish, run.context, result)
    run.concluded.set_result(result)
    name = run.setup.name
    if name is not None and not run.state.head.name and result.status == "complete" and run.limit.time_left() > 0:
        try:
            await within(min(NAMING_SECONDS, run.limit.time_left()), name())
        except (Exception, asyncio.CancelledError) as exc:  # a team's provider may raise anything
            ensure_not_cancelled()
            logger.warning("session not named", extra={"cause": f"{type(exc).__name__}: {exc}"})
    if run.summary is not None:
        result = replace(result, summary_missed=await finish_summary(run, run.summary))
    await in_time(run, run.setup.hooks.on_end, result)
    if not result.stored:
        from omniagent.turns.watch.deletion import erase_late_chunks  # needed only after a lost turn

        await in_time(run, erase_late_chunks, run.setup.session, run.setup.registry)


async def in_time(run: TurnRun, callback: Callable[..., Awaitable[None]] | None, *arguments: Any) -> None:
    """Await a callback, with a timeout: the end of the turn waits for it."""
    if callback is not None:
        task = asyncio.create_task(call_back(callback, *arguments), name="callback")
        if not await _ends_within(run.limit.closing_seconds(CALLBACK_SECONDS), task):
            logger.warning("callback takes too long and is cancelled")


async def finish_summary(run: TurnRun, task: asyncio.Task[Summarized]) -> bool:
    """Wait for the summary: one tick if missed summaries are generated elsewhere, otherwise while there is time.

    Returns whether a due summary was not generated.
    """
    setup, left = run.setup, max(0.0, run.limit.time_left())
    patience = min(left, setup.session.settings.tick_seconds) if setup.hooks.leaves_summaries else left
    await _ends_within(patience, task)
    if not task.done() or task.cancelled():
        logger.info("summary left to the queue")
    elif (exc := task.exception()) is not None:
        logger.warning("summary failed", extra={"cause": f"{type(exc).__name__}: {exc}"})
    else:
        return not task.result().is_done
    return True


async def _ends_within(seconds: float, task: asyncio.Task[Any]) -> bool:
    """Wait for a task. Returns whether it ended by itself: after so many seconds it is cancelled."""
    try:
        done, _ = await asyncio.wait([task], timeout=None if math.isinf(seconds) else seconds)
    finally:
        if not task.done():
            await cancelled(task)
    return bool(done)
