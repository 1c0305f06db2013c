"""The jobs of the summary function: summaries, large deletions, retention, models that end, index builds."""

import asyncio
import logging
import time
from typing import Any

from pydantic import AwareDatetime, BaseModel, Field, model_validator

from omniagent.ai.runner import TimeLeft
from omniagent.app.application import Application
from omniagent.app.housekeeping import Housekeeping
from omniagent.app.queues import bind_key
from omniagent.errors import BudgetExceeded, Forbidden, NotFound, OmniAgentError
from omniagent.session.ids import session_key, user_id_of
from omniagent.tracing import trace_job

logger = logging.getLogger(__name__)


class SummaryJob(BaseModel):
    """A job for a session, for the deletion of a user, for retention, for the check of the models, or for indexes.

    `session_id` is the session's key, or with `user` (a client id) the id that the client knows.
    """

    session_id: str = Field("", max_length=256)
    user: str | None = None
    user_id: str = Field("", max_length=64)
    rebuild: bool = False
    erase: bool = False
    retention: bool = False
    model_ends: bool = False
    indexes: bool = False
    before: AwareDatetime | None = None
    """When the deletion of the user began."""
    traceparent: str = Field("", max_length=128)

    @model_validator(mode="after")
    def _check(self) -> "SummaryJob":
        if not (self.session_id or (self.erase and self.user_id) or self.retention or self.model_ends or self.indexes):
            raise ValueError("send `session_id`, `user_id` with `erase`, `retention`, `model_ends`, or `indexes`")
        return self

    @property
    def is_summary(self) -> bool:
        return not (self.erase or self.retention or self.model_ends or self.indexes)

    @property
    def key(self) -> str:
        return self.session_id if self.user is None else session_key(user_id_of(self.user), self.session_id)


class SummaryJobs:
    """Does the jobs of the summary function."""

    margin_seconds = 10.0
    """Reserved at the end of an invocation: no new piece of work begins in it."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._housekeeping = Housekeeping(application)

    async def invoke(self, event: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Do one job: `{"session_id": "<user id>:<id>", "rebuild": false}`."""
        return await self._serve(SummaryJob.model_validate(event), deadline, queued=False)

    async def take(self, body: str, deadline: float, *, queue: str) -> None:
        """Do a queued job. They run one after another, so that two for one session are not paid for twice.

        Only the deletion queue may bring another job than a summary: every function may send to the summary queue.
        """
        job = SummaryJob.model_validate_json(body)
        if not job.is_summary and queue != self._application.platform.deletion_queue.name:
            raise Forbidden(f"the queue {queue} may bring no deletion")
        await self._serve(job, deadline, queued=True)

    async def _serve(self, job: SummaryJob, deadline: float, *, queued: bool) -> dict[str, Any]:
        """Do one job and return what was done. For a deleted session there is nothing to do."""

        def time_left() -> float:
            return deadline - time.monotonic()

        with bind_key(job.key), trace_job("job", job.traceparent):
            try:
                if job.retention or job.model_ends or job.indexes:
                    return await self._maintain(job, time_left)
                if job.erase:
                    return await self._erase(job, time_left, resume=queued)
                return await self._summarize(job, time_left, queued=queued)
            except NotFound:
                return {"session_id": job.key, "status": "not_found"}
            except BudgetExceeded:
                # Dropped: if a summary is still due, a later turn queues it again.
                logger.warning("summary job over budget")
                await self._application.end_summary(job.key, rebuild=job.rebuild, is_done=True)
                return {"session_id": job.key, "status": "over_budget"}
            except OmniAgentError as exc:
                await self._application.recover(exc)
                raise

    async def _summarize(self, job: SummaryJob, time_left: TimeLeft, *, queued: bool) -> dict[str, Any]:
        """Update a summary. If the time is too short, the rest is queued. A queued rebuild may arrive twice: it is done
        once.
        """
        runner = await self._application.runner_of_key(job.key)
        rebuild = job.rebuild and not (queued and await self._is_rebuilt(job.key))
        result = await runner.summarize(rebuild=rebuild, time_left=time_left)
        status = "summarized" if result.written else "unchanged"
        if not result.is_done:
            status = "unfinished"
        await self._application.end_summary(job.key, rebuild=job.rebuild, is_done=result.is_done)
        logger.info("summary job ended", extra={"status": status, "written": result.written})
        return {"session_id": job.key, "status": status, "end_turn_number": result.end_turn_number}

    async def _is_rebuilt(self, key: str) -> bool:
        catalog = await self._application.catalog()
        return await catalog.summary_is_current(await catalog.get(key), rebuild=True)

    async def _erase(self, job: SummaryJob, time_left: TimeLeft, *, resume: bool) -> dict[str, Any]:
        """Delete a session or a user. A queued job may arrive twice, so it only continues a deletion that has begun."""
        if job.session_id:
            await self._housekeeping.erase_session(job.key, time_left=time_left, resume=resume)
        elif resume:
            await self._housekeeping.resume_user_erasure(job.user_id, job.before, time_left=time_left)
        else:
            await self._housekeeping.erase_user(job.user_id, time_left=time_left)
        logger.info("deletion job ended")
        return {"session_id": job.key, "status": "erased"}

    async def _maintain(self, job: SummaryJob, time_left: TimeLeft) -> dict[str, Any]:
        """Do a job that belongs to no session."""
        if job.retention:
            return await self._retain(time_left)
        if job.model_ends:
            return {"status": "checked", "ending": await self._housekeeping.check_model_ends()}
        try:
            async with asyncio.timeout(time_left()):
                await self._application.build_indexes()
        except TimeoutError:  # the server goes on without us: the next job waits for the same build
            return {"status": "building"}
        return {"status": "indexed"}

    async def _retain(self, time_left: TimeLeft) -> dict[str, Any]:
        """Delete the sessions that were unused for too long. Sent by the schedule."""
        deleted = await self._housekeeping.apply_retention(time_left=time_left)
        logger.info("retention ended", extra={"deleted": deleted})
        return {"status": "retained", "deleted": deleted}
