"""The jobs of the summary function: summaries, models that end, index builds."""

import asyncio
import logging
from dataclasses import asdict
from typing import Any, Final

from pydantic import BaseModel, Field, model_validator

from omniagent.ai.runner import TimeLeft, until
from omniagent.app.application import Application
from omniagent.errors import BudgetExceeded, Forbidden, NotFound, OmniAgentError
from omniagent.invocation import deadline
from omniagent.persistence.catalog import Catalog
from omniagent.session.ids import session_key, user_id_of

logger = logging.getLogger(__name__)

LAST_PIECE_SECONDS: Final = 10.0
"""The end of an invocation, in which no new piece of work begins."""


class SummaryJob(BaseModel):
    """A job for the summary of a session, for the check of the models, or for indexes.

    `session_id` is the session's key, or with `user` (a client id) the id that the client knows.
    """

    session_id: str = Field("", max_length=256)
    user: str | None = None
    rebuild: bool = False
    model_ends: bool = False
    indexes: bool = False
    traceparent: str = Field("", max_length=128)

    @model_validator(mode="after")
    def _check(self) -> "SummaryJob":
        if not (self.session_id or self.model_ends or self.indexes):
            raise ValueError("send `session_id`, `model_ends`, or `indexes`")
        return self

    @property
    def key(self) -> str:
        return self.session_id if self.user is None else session_key(user_id_of(self.user), self.session_id)


class SummaryJobs:
    """Does the jobs of the summary function."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def invoke(self, event: dict[str, Any]) -> dict[str, Any]:
        """Do one job: `{"session_id": "<user id>:<id>", "rebuild": false}`."""
        return await self._serve(SummaryJob.model_validate(event), queued=False)

    async def take(self, body: str, *, queue: str) -> None:
        """Do a queued job. They run one after another, so that two for one session are not paid for twice.

        Every function may send to the queue, so it brings only summaries.
        """
        job = SummaryJob.model_validate_json(body)
        if job.model_ends or job.indexes:
            raise Forbidden(f"the queue {queue} may bring only summaries")
        await self._serve(job, queued=True)

    async def _serve(self, job: SummaryJob, *, queued: bool) -> dict[str, Any]:
        """Do one job and return what was done. For a deleted session there is nothing to do."""
        time_left = until(deadline(LAST_PIECE_SECONDS))
        async with self._application.job(job.key, job.traceparent):
            try:
                if job.model_ends:
                    return {"status": "checked", "ending": await self._check_model_ends()}
                if job.indexes:
                    return await self._build_indexes(time_left)
                return await self._summarize(job, time_left, queued=queued)
            except NotFound:
                return {"session_id": job.key, "status": "not_found"}
            except BudgetExceeded:
                # Dropped: if a summary is still due, a later turn queues it again.
                logger.warning("summary job over budget")
                await self._application.end_summary(job.key, rebuild=job.rebuild, is_done=True)
                return {"session_id": job.key, "status": "over_budget"}

    async def _summarize(self, job: SummaryJob, time_left: TimeLeft, *, queued: bool) -> dict[str, Any]:
        """Update a summary. If the time is too short, the rest is queued. A queued rebuild may arrive twice: it is done
        once.
        """
        runner = await self._application.runner_of_key(job.key)
        rebuild, catalog = job.rebuild, Catalog(await self._application.store())
        if rebuild and queued and await catalog.summary_is_current(await catalog.get(job.key), rebuild=True):
            rebuild = False
        result = await runner.summarize(rebuild=rebuild, time_left=time_left)
        status = "unfinished" if not result.is_done else "summarized" if result.written else "unchanged"
        await self._application.end_summary(job.key, rebuild=job.rebuild, is_done=result.is_done)
        logger.info("summary job ended", extra={"status": status, "written": result.written})
        return {"session_id": job.key, "status": status, "end_turn_number": result.end_turn_number}

    async def _build_indexes(self, time_left: TimeLeft) -> dict[str, Any]:
        try:
            async with asyncio.timeout(time_left()):
                await self._application.build_indexes()
        except TimeoutError:  # the server goes on without us: the next job waits for the same build
            return {"status": "building"}
        return {"status": "indexed"}

    async def _check_model_ends(self) -> list[str]:
        """Log and count the models that end soon, and return their names. If a server fails, that is only logged."""
        from omniagent.ai.model_ends import announced_ends, models_of

        application = self._application
        models = models_of(application.project.all_agents.values(), application.settings)
        try:
            ends = await announced_ends(application.providers, models)
        except OmniAgentError as exc:
            logger.warning("model ends not checked", extra={"cause": str(exc)})
            return []
        for end in ends:
            logger.warning("model ends soon", extra=asdict(end))
        application.platform.emit({"ModelsEndingSoon": len(ends)})  # also 0, which ends an alarm
        return [end.model for end in ends]
