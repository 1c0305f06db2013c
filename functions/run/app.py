"""The run function: finishes turns whose process died. Its queue tells it which turns to look after."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import BaseModel, Field, ValidationError

from omniagent.aws.json_api import ends_within
from omniagent.aws.services import get_services
from omniagent.errors import NotFound, OmniAgentError
from omniagent.lambda_runtime import event_loop
from omniagent.lambda_runtime.snapshots import before_snapshot
from omniagent.tracing import bind_context, flush_traces, trace_job
from omniagent.tracing.logs import bind_request_id
from project import project

logger = logging.getLogger(__name__)
services = get_services(project)
before_snapshot(services.close, services.load)

MARGIN_SECONDS: Final = 5.0
"""Kept at the end of an invocation, to tell the queue what was done."""
MAX_TRIES: Final = 20
"""So many looks may fail in a row before the message goes to the dead letters."""


class Watch(BaseModel):
    """A turn to look after, by the key of its session."""

    session_id: str = Field(max_length=256)
    turn_id: str = Field(max_length=256)
    tries: int = Field(0, ge=0)
    """How many looks have failed in a row."""
    traceparent: str = Field("", max_length=128)


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Take a batch of the queue, or one turn: `{"session_id": "<user id>:<id>", "turn_id": "<id>"}`."""
    seconds_left = context.get_remaining_time_in_millis() / 1000
    deadline = time.monotonic() + seconds_left - MARGIN_SECONDS
    with bind_request_id(context.aws_request_id), ends_within(seconds_left):
        try:
            if "Records" not in event:
                return event_loop.run(_serve_one(Watch.model_validate(event), deadline))
            return event_loop.run(_serve(event["Records"], deadline))
        finally:
            event_loop.run(flush_traces())


async def _serve_one(watch: Watch, deadline: float) -> dict[str, Any]:
    is_dead = await _is_dead(watch)
    if is_dead:
        await _continue(watch, deadline)
    return {"session_id": watch.session_id, "status": "continued" if is_dead else "looked"}


async def _serve(records: Sequence[dict[str, Any]], deadline: float) -> dict[str, Any]:
    """Look at every turn of a batch. One that died is continued here, the others by invocations of their own.

    So a turn that kills its process takes no other with it.
    """
    looks = await asyncio.gather(*(_look(record) for record in records))
    failed = [record["messageId"] for record, watch in zip(records, looks, strict=True) if watch is _FAILED]
    dead = [watch for watch in looks if isinstance(watch, Watch)]
    for watch in dead[1:]:
        await services.look_again(watch.session_id, watch.turn_id, tries=watch.tries)
    if dead:
        await _tried(dead[0], deadline)
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


_FAILED = object()


async def _look(record: dict[str, Any]) -> Watch | object | None:
    """Return the turn of a message if its process died."""
    try:
        watch = Watch.model_validate_json(record["body"])
    except ValidationError:
        logger.exception("message is no watch", extra={"message_id": record["messageId"]})
        return _FAILED
    try:
        return watch if await _is_dead(watch) else None
    except OmniAgentError as exc:
        return await _try_later(watch, exc)


async def _tried(watch: Watch, deadline: float) -> None:
    try:
        await _continue(watch, deadline)
    except OmniAgentError as exc:
        await services.recover(exc)
        if await _try_later(watch, exc) is _FAILED:
            raise


async def _is_dead(watch: Watch) -> bool:
    """Whether somebody has to continue a turn. One that lives is looked at again when its lease has run out."""
    running = await services.registry.running(watch.session_id)
    if running is None or running.claim.turn_id != watch.turn_id:
        return False  # it has ended
    if running.alive:
        await services.look_again(watch.session_id, watch.turn_id, delay_seconds=running.lease_left)
    return not running.alive


async def _continue(watch: Watch, deadline: float) -> None:
    with bind_context(session_id=watch.session_id), trace_job("job", watch.traceparent):
        try:
            runner = await services.runner_of_key(watch.session_id)
        except NotFound:
            return  # deleted
        stream = await runner.continue_turn(deadline=deadline)
        if stream is not None:
            await stream.ended()


async def _try_later(watch: Watch, exc: OmniAgentError) -> object | None:
    """Look again a little later. The queue itself would wait for longer than its function may run."""
    logger.warning("look failed", extra={"tries": watch.tries, "cause": f"{type(exc).__name__}: {exc}"})
    if watch.tries >= MAX_TRIES:
        return _FAILED
    try:
        await services.look_again(watch.session_id, watch.turn_id, delay_seconds=5, tries=watch.tries + 1)
    except OmniAgentError:
        return _FAILED
    return None
