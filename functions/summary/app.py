"""The summary function: summaries, deletions too large for one request, and retention.

It is invoked by its queue, by a schedule, or directly.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Any, Final

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import AwareDatetime, BaseModel, Field, model_validator

from omniagent.aws.housekeeping import Housekeeping
from omniagent.aws.invocation_end import ends_within
from omniagent.aws.services import get_services
from omniagent.errors import BudgetExceeded, NotFound, OmniAgentError
from omniagent.lambda_runtime import event_loop
from omniagent.lambda_runtime.snapshots import before_snapshot
from omniagent.session.manager import session_key, user_id_of
from omniagent.tracing import bind_context, flush_traces, trace_job
from omniagent.tracing.logs import bind_request_id
from project import project

logger = logging.getLogger(__name__)
services = get_services(project)
housekeeping = Housekeeping(services)
before_snapshot(services.close, services.load)
# Failures are logged one by one and reported to the queue, which redelivers only those.
processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)

MARGIN_SECONDS: Final = 10.0
"""Reserved at the end of an invocation: no new piece of work begins in it."""


class Job(BaseModel):
    """A job for a session, for the deletion of a user, or for retention.

    `session_id` is the session's key, or with `user` (a client id) the id that the client knows.
    """

    session_id: str = Field("", max_length=256)
    user: str | None = None
    user_id: str = Field("", max_length=64)
    rebuild: bool = False
    erase: bool = False
    retention: bool = False
    before: AwareDatetime | None = None
    """When the deletion of the user began."""
    traceparent: str = Field("", max_length=128)

    @model_validator(mode="after")
    def _check(self) -> "Job":
        if not self.session_id and not (self.erase and self.user_id) and not self.retention:
            raise ValueError("send `session_id`, `user_id` with `erase`, or `retention`")
        return self

    @property
    def key(self) -> str:
        return self.session_id if self.user is None else session_key(user_id_of(self.user), self.session_id)


def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    """Handle a batch of queue messages, or one job: `{"session_id": "<user id>:<id>", "rebuild": false}`."""
    time_left = _time_left(context)
    seconds_left = context.get_remaining_time_in_millis() / 1000
    with bind_request_id(context.aws_request_id), ends_within(seconds_left):
        try:
            if "Records" in event:
                return process_partial_response(event, lambda record: _take(record, time_left), processor, context)
            return event_loop.run(serve(Job.model_validate(event), time_left))
        finally:
            event_loop.run(flush_traces())


def _take(record: SQSRecord, time_left: Callable[[], float]) -> None:
    """Handle one queue message. They run one after another, so that two for one session are not paid for twice."""
    try:
        event_loop.run(serve(Job.model_validate_json(record.body), time_left, queued=True))
    except Exception:
        logger.exception("job failed", extra={"message_id": record.message_id})
        raise


async def serve(job: Job, time_left: Callable[[], float] = lambda: math.inf, *, queued: bool = False) -> dict[str, Any]:
    """Do one job and return what was done. For a deleted session there is nothing to do."""
    with bind_context(session_id=job.key or None), trace_job("job", job.traceparent):
        try:
            if job.retention:
                return await _retain(time_left)
            if job.erase:
                return await _erase(job, time_left, resume=queued)
            return await _summarize(job, time_left, queued=queued)
        except NotFound:
            return {"session_id": job.key, "status": "not_found"}
        except BudgetExceeded:
            # Dropped: if a summary is still due, a later turn queues it again.
            logger.warning("summary job over budget")
            await services.end_summary(job.key, rebuild=job.rebuild, is_done=True)
            return {"session_id": job.key, "status": "over_budget"}
        except OmniAgentError as exc:
            await services.recover(exc)
            raise


async def _summarize(job: Job, time_left: Callable[[], float], *, queued: bool) -> dict[str, Any]:
    """Update a summary. If the time is too short, the rest is queued. A queued rebuild may arrive twice: it is done
    once.
    """
    runner = await services.runner_of_key(job.key)
    rebuild = job.rebuild and not (queued and await _is_rebuilt(job.key))
    result = await runner.summarize(rebuild=rebuild, time_left=time_left)
    status = "summarized" if result.written else "unchanged"
    if not result.is_done:
        status = "unfinished"
    await services.end_summary(job.key, rebuild=job.rebuild, is_done=result.is_done)
    logger.info("summary job ended", extra={"status": status, "written": result.written})
    return {"session_id": job.key, "status": status, "end_turn_number": result.end_turn_number}


async def _is_rebuilt(key: str) -> bool:
    catalog = await services.catalog()
    return await catalog.summary_is_current(await catalog.get(key), rebuild=True)


async def _erase(job: Job, time_left: Callable[[], float], *, resume: bool) -> dict[str, Any]:
    """Delete a session or a user. A queued job, which may arrive twice, only continues a deletion that has begun."""
    if job.session_id:
        await housekeeping.erase_session(job.key, time_left=time_left, resume=resume)
    elif resume:
        await housekeeping.resume_user_erasure(job.user_id, job.before, time_left=time_left)
    else:
        await housekeeping.erase_user(job.user_id, time_left=time_left)
    logger.info("deletion job ended")
    return {"session_id": job.key, "status": "erased"}


async def _retain(time_left: Callable[[], float]) -> dict[str, Any]:
    """Delete the sessions that were unused for too long. Sent by the schedule."""
    deleted = await housekeeping.apply_retention(time_left=time_left)
    logger.info("retention ended", extra={"deleted": deleted})
    return {"status": "retained", "deleted": deleted}


def _time_left(context: LambdaContext) -> Callable[[], float]:
    end = time.monotonic() + context.get_remaining_time_in_millis() / 1000 - MARGIN_SECONDS
    return lambda: end - time.monotonic()
