"""The jobs of the run function: sessions that need somebody, the sweep that finds them, schedules, webhooks.

An operator invokes it to list the turns of all users, to stop one, and to delete a session or a user.
"""

import logging
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_core import to_jsonable_python

from omniagent.ai.runner import until
from omniagent.app.application import Application
from omniagent.app.queues import MAX_TRIES, bind_key, retry_pause
from omniagent.app.sweep import erase_marked, sessions_with_work
from omniagent.app.webhook import TurnEvent
from omniagent.errors import NotFound, NotRegenerable, OmniAgentError, TooManyTurns, TurnInProgress
from omniagent.persistence.live_turns import list_live_turns
from omniagent.session.ids import ID_PATTERN, new_id, session_key, user_id_of
from omniagent.session.query import Query
from omniagent.settings import Busy
from omniagent.tracing import trace_job

if TYPE_CHECKING:
    from omniagent.ai.operator import TurnOperator

logger = logging.getLogger(__name__)

BUSY_SECONDS: Final = 5
"""The pause before the next try of a session whose user has too many running turns."""
MIN_TURN_SECONDS: Final = 30.0
"""With less time left, the next turn is left to another invocation."""
UNANNOUNCED_AFTER: Final = timedelta(minutes=1)
"""How long an answer may wait for its own process to queue its event."""
UNANNOUNCED_PIECE: Final = 100
LISTED_SESSIONS: Final = 1000
ERASE_SECONDS: Final = 45.0
"""How long a sweep deletes. The next one, a minute later, goes on."""


class RunJob(BaseModel):
    """One message of the queue."""

    tries: int = Field(0, ge=0)
    """How often it has failed."""
    traceparent: str = Field("", max_length=128)

    @property
    def key(self) -> str:
        """The key of the job's session. Empty: it has none."""
        return ""

    async def send_again(self, application: Application, seconds: float, **changes: Any) -> None:
        """Queue this job again with a delay."""
        again = self.model_dump(mode="json", exclude={"traceparent"}) | changes
        await application.platform.run_queue.send(again, delay_seconds=seconds)

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:
        """Do the work before the deadline, a `time.monotonic()`, and return what was done.

        If it raises an `OmniAgentError`, the job is sent again later.
        """
        raise NotImplementedError


class SessionJob(RunJob):
    """Does what a session needs: finishes a turn whose process died or handed it over, answers messages in line.

    `session_id` is the session's key.
    """

    kind: Literal["run"]
    session_id: str = Field(max_length=256)

    @property
    def key(self) -> str:
        return self.session_id

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:
        try:
            runner = await application.runner_of_key(self.session_id)
            return {"status": await self._take_up(application, runner, deadline)}
        except NotFound:
            return {"status": "not_found"}

    async def _take_up(self, application: Application, runner: "TurnOperator", deadline: float) -> str:
        status = "nothing"
        while True:
            try:
                stream = await runner.take_up(deadline=deadline)
            except TooManyTurns:
                await self.send_again(application, BUSY_SECONDS)
                return "busy"
            if stream is None:
                return status
            await stream.ended()
            status = "ran"
            if time.monotonic() > deadline - MIN_TURN_SECONDS:
                return status  # the end of the turn has queued the session if there is more


class SweepJob(RunJob):
    """Finds sessions that need somebody, and queues a job for each. Deletes what is marked. Sent by the schedule."""

    kind: Literal["sweep"]

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:
        store = await application.store()
        found = await sessions_with_work(store, application.runner_at)
        for address in found:
            if time.monotonic() > deadline:
                break  # the next sweep finds the rest
            await application.platform.run_queue.send_run(address.key)
        announced = 0
        if application.settings.webhook_url:
            catalog, before = await application.catalog(), datetime.now(UTC) - UNANNOUNCED_AFTER
            for key, answer in await catalog.unannounced(before, UNANNOUNCED_PIECE):
                await application.announcements.announce(key, answer)
                announced += 1
        end, days = min(deadline, time.monotonic() + ERASE_SECONDS), application.settings.session_retention_days
        if failed := await erase_marked(store, application.runner_at, until(end), retention_days=days):
            raise OmniAgentError(f"{failed} deletions failed")  # the alarm; the next sweep tries again
        return {"status": "swept", "sessions": len(found), "events": announced}


class ScheduledJob(RunJob):
    """A message that a schedule sends on behalf of a user. A redelivery has the same message id."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    kind: Literal["schedule"]
    schedule: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """The name of the schedule."""
    time: AwareDatetime
    """When the schedule was due: `<aws.scheduler.scheduled-time>`."""
    user: str = Field(min_length=1, max_length=256)
    category: str | None = Field(None, max_length=256)
    query: str = Field(min_length=1)
    session_id: str | None = Field(None, pattern=ID_PATTERN)
    """Without an id, each run of the schedule has its own session."""
    busy: Busy = "queue"
    agent: str | None = Field(None, pattern=ID_PATTERN)
    """The agent of a new session, if the project has several."""

    @property
    def key(self) -> str:
        return session_key(user_id_of(self.user), self._session)

    @property
    def _session(self) -> str:
        return self.session_id or self._message_id

    @property
    def _message_id(self) -> str:
        return f"{self.schedule}-{self.time.astimezone(UTC):%Y%m%dT%H%M%SZ}"

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:  # noqa: ARG002 - one write
        """Put the message in line. Its turn is a job of its own."""
        runner = await application.runner(self.user, self._session, category=self.category)
        query = Query(self.query, self._message_id, busy=self.busy, agent=self.agent)
        try:
            await runner.accept(query)
        except NotRegenerable:
            return {"status": "answered"}  # a redelivery
        except TurnInProgress:
            logger.warning("scheduled message rejected: its session is busy", extra={"schedule": self.schedule})
            return {"status": "rejected"}
        return {"status": "accepted"}


class WebhookJob(RunJob):
    """Delivers an event to the operator's webhook."""

    kind: Literal["webhook"]
    session_id: str = Field(max_length=256)
    event: TurnEvent

    @property
    def key(self) -> str:
        return self.session_id

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:  # noqa: ARG002 - a delivery has its own time limit
        is_delivered = await application.announcements.deliver(self.session_id, self.event, again=self.tries > 0)
        return {"status": "delivered" if is_delivered else "dropped", "event": self.event.id}


class ListJob(RunJob):
    """Lists the turns of all users that run, wait or are in line, without their text. Sent by an operator."""

    kind: Literal["turns"]

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:  # noqa: ARG002 - one short query
        found = await list_live_turns(await application.store(), LISTED_SESSIONS)
        turns = [asdict(info) | {"id": f"{info.session_id}/{info.message_id}"} for info in found]
        return {"status": "listed", "turns": to_jsonable_python(turns)}


class StopJob(RunJob):
    """Stops a turn or a message in line, by the id of the list, or everything in a session, by its key.

    Sent by an operator.
    """

    kind: Literal["stop"]
    id: str = Field(pattern=r"^[0-9a-f]{24}:[^/:]{1,128}(/[^/:]{1,128})?$")

    @property
    def key(self) -> str:
        return self.id.partition("/")[0]

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:  # noqa: ARG002 - a few writes
        try:
            runner = await application.runner_of_key(self.key)
            is_stopped = await runner.stop(self.id.partition("/")[2] or None)
        except NotFound:
            return {"status": "not_found", "id": self.id}
        return {"status": "stopped" if is_stopped else "nothing", "id": self.id}


class EraseJob(RunJob):
    """Deletes a session, by its key, or a user, by their id, with everything of theirs. Sent by an operator."""

    kind: Literal["erase"]
    id: str = Field(pattern=r"^[0-9a-f]{24}(:[^/:]{1,128})?$")

    @property
    def key(self) -> str:
        return self.id

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:
        user_id, _, session_id = self.id.partition(":")
        try:
            runner = await application.runner_of_key(session_key(user_id, session_id or new_id()))
            await (runner.erase_session if session_id else runner.erase_user)(until(deadline))
        except NotFound:
            return {"status": "not_found", "id": self.id}
        return {"status": "erased", "id": self.id}


# What a function that runs tools may send. It can neither act for any user nor delete.
QueuedJob = Annotated[SessionJob | WebhookJob, Field(discriminator="kind")]
InvokedJob = Annotated[
    SessionJob | ScheduledJob | WebhookJob | SweepJob | ListJob | StopJob | EraseJob, Field(discriminator="kind")
]
# Validation errors are logged, so they must not contain the user's text.
_HIDDEN: Final = ConfigDict(hide_input_in_errors=True)
_QUEUED: Final[TypeAdapter[QueuedJob]] = TypeAdapter(QueuedJob, config=_HIDDEN)
_INVOKED: Final[TypeAdapter[InvokedJob]] = TypeAdapter(InvokedJob, config=_HIDDEN)


class RunJobs:
    """Does the jobs of the run function."""

    margin_seconds = 5.0
    """Reserved at the end of an invocation to report the result to the queue."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def invoke(self, event: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Do one job: `{"kind": "run", "session_id": "<user id>:<id>"}`."""
        return await self._serve(_INVOKED.validate_python(event), deadline)

    async def take(self, body: str, deadline: float, *, queue: str) -> None:
        """Do a queued job. If it fails, send it again with a pause: the queue would redeliver it after many minutes.

        Raises after MAX_TRIES. The queue then moves it to the dead-letter queue. The other functions may send to the
        run queue, so it brings no schedule, which acts for any user. Another queue brings nothing else, and redelivers
        what failed.
        """
        if queue != self._application.platform.run_queue.name:
            await self._serve(ScheduledJob.model_validate_json(body), deadline)
            return
        job = _QUEUED.validate_json(body)
        try:
            await self._serve(job, deadline)
        except OmniAgentError as exc:
            if job.tries >= MAX_TRIES:
                raise
            failure = {"kind": job.kind, "tries": job.tries, "cause": f"{type(exc).__name__}: {exc}"}
            logger.warning("job failed", extra=failure)
            await job.send_again(self._application, retry_pause(job.tries), tries=job.tries + 1)

    async def _serve(self, job: InvokedJob, deadline: float) -> dict[str, Any]:
        with bind_key(job.key), trace_job("job", job.traceparent):
            try:
                result = await job.run(self._application, deadline)
            except OmniAgentError as exc:
                await self._application.recover(exc)
                raise
        facts = {name: value for name, value in result.items() if name != "turns"}
        logger.info("job ended", extra={"kind": job.kind, **facts})
        return result
