"""The jobs of the run function: sessions that need somebody, the sweep that finds them, schedules, webhooks.

An operator invokes it to list the turns of all users, to stop one, and to delete a session or a user.
"""

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_core import to_jsonable_python

from omniagent.ai.runner import until
from omniagent.app.application import Application
from omniagent.app.sweep import erase_marked, finish, sessions_with_work
from omniagent.app.webhook import TurnEvent, deliver
from omniagent.errors import NotFound, NotRegenerable, OmniAgentError, TooManyTurns, TurnInProgress
from omniagent.session.ids import ID_PATTERN, new_id, session_key, user_id_of
from omniagent.session.query import Query
from omniagent.settings import Busy

logger = logging.getLogger(__name__)

MAX_TRIES: Final = 10
"""How often a job that fails is sent again. Its pauses double, and together last most of an hour."""
FIRST_PAUSE_SECONDS: Final = 5
LONGEST_PAUSE_SECONDS: Final = 900
"""The longest pause before a job is tried again, which is also the longest delay of a message."""
BUSY_SECONDS: Final = 5
"""The pause before the next try of a session whose user has too many running turns."""
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


class SessionJob(RunJob):
    """Does what a session needs: finishes a turn whose process died or handed it over, answers messages in line.

    `session_id` is the session's key.
    """

    kind: Literal["run"]
    session_id: str = Field(max_length=256)

    @property
    def key(self) -> str:
        return self.session_id


class WebhookJob(SessionJob):
    """Delivers an event to the operator's webhook."""

    kind: Literal["webhook"]  # type: ignore[assignment]  # it has a session, too
    event: TurnEvent


class SweepJob(RunJob):
    """Finds sessions that need somebody, and queues a job for each. Deletes what is marked. Sent by the schedule."""

    kind: Literal["sweep"]


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
    def message_id(self) -> str:
        return f"{self.schedule}-{self.time.astimezone(UTC):%Y%m%dT%H%M%SZ}"

    @property
    def key(self) -> str:
        return session_key(user_id_of(self.user), self.session_id or self.message_id)


class ListJob(RunJob):
    """Lists the turns of all users that run, wait or are in line, without their text. Sent by an operator."""

    kind: Literal["turns"]


class StopJob(RunJob):
    """Stops a turn or a message in line, by the id of the list, or everything in a session, by its key.

    Sent by an operator.
    """

    kind: Literal["stop"]
    id: str = Field(pattern=r"^[0-9a-f]{24}:[^/:]{1,128}(/[^/:]{1,128})?$")

    @property
    def key(self) -> str:
        return self.id.partition("/")[0]


class EraseJob(RunJob):
    """Deletes a session, by its key, or a user, by their id, with everything of theirs. Sent by an operator."""

    kind: Literal["erase"]
    id: str = Field(pattern=r"^[0-9a-f]{24}(:[^/:]{1,128})?$")

    @property
    def key(self) -> str:
        return self.id


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
        run_queue = self._application.platform.run_queue
        if run_queue is None or queue != run_queue.name:
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
            pause = min(FIRST_PAUSE_SECONDS * 2.0**job.tries, LONGEST_PAUSE_SECONDS)
            await self._send_again(job, pause, tries=job.tries + 1)

    async def _serve(self, job: InvokedJob, deadline: float) -> dict[str, Any]:
        async with self._application.job(job.key, job.traceparent):
            result = await self._do(job, deadline)
        facts = {name: value for name, value in result.items() if name != "turns"}
        logger.info("job ended", extra={"kind": job.kind, **facts})
        return result

    async def _do(self, job: InvokedJob, deadline: float) -> dict[str, Any]:
        """Do the work before the deadline, a `time.monotonic()`, and return what was done."""
        match job:
            case WebhookJob():
                return {"status": await self._deliver(job), "event": job.event.id}
            case SessionJob():
                return {"status": await self._finish(job, deadline)}
            case SweepJob():
                return await self._sweep(deadline)
            case ScheduledJob():
                return {"status": await self._accept(job)}
            case ListJob():
                found = await (await self._application.catalog()).live_turns(LISTED_SESSIONS)
                turns = [info | {"id": f"{info['session_id']}/{info['message_id']}"} for info in found]
                return {"status": "listed", "turns": to_jsonable_python(turns)}
            case StopJob() | EraseJob():
                try:
                    status = await (self._stop(job) if isinstance(job, StopJob) else self._erase(job, deadline))
                except NotFound:
                    status = "not_found"
                return {"status": status, "id": job.id}

    async def _finish(self, job: SessionJob, deadline: float) -> str:
        try:
            # The end of the last turn has queued the session if there is more.
            return "ran" if await finish(await self._application.runner_of_key(job.key), deadline) else "nothing"
        except TooManyTurns:
            await self._send_again(job, BUSY_SECONDS)
            return "busy"
        except NotFound:
            return "not_found"

    async def _sweep(self, deadline: float) -> dict[str, Any]:
        application = self._application
        store = await application.store()
        found = await sessions_with_work(store, application.runner_at)
        for address in found:
            if time.monotonic() > deadline:
                break  # the next sweep finds the rest
            await application.queue_run(address.key)
        announced = 0
        if application.settings.webhook_url:
            catalog, before = await application.catalog(), datetime.now(UTC) - UNANNOUNCED_AFTER
            for key, answer in await catalog.unannounced(before, UNANNOUNCED_PIECE):
                await application.announce(key, answer)
                announced += 1
        end, days = min(deadline, time.monotonic() + ERASE_SECONDS), application.settings.session_retention_days
        if failed := await erase_marked(store, application.runner_at, until(end), retention_days=days):
            raise OmniAgentError(f"{failed} deletions failed")  # the alarm; the next sweep tries again
        return {"status": "swept", "sessions": len(found), "events": announced}

    async def _accept(self, job: ScheduledJob) -> str:
        """Put the message of a schedule in line. Its turn is a job of its own."""
        runner = await self._application.runner(job.user, job.session_id or job.message_id, category=job.category)
        try:
            await runner.accept(Query(job.query, job.message_id, busy=job.busy, agent=job.agent))
        except NotRegenerable:
            return "answered"  # a redelivery
        except TurnInProgress:
            logger.warning("scheduled message rejected: its session is busy", extra={"schedule": job.schedule})
            return "rejected"
        return "accepted"

    async def _deliver(self, job: WebhookJob) -> str:
        """Send an event to the webhook, unless none is set, or the session's user is deleted."""
        platform, store = self._application.platform, await self._application.store()
        address = await store.address_of(job.key)
        if address is None or not platform.settings.webhook_url:
            return "dropped"
        secret = await platform.secret("webhook", refresh=job.tries > 0)
        body = job.event.body(user=address.user, session_id=address.session_id)
        await deliver(platform.settings.webhook_url, job.event.id, body, secret)
        return "delivered"

    async def _stop(self, job: StopJob) -> str:
        runner = await self._application.runner_of_key(job.key)
        return "stopped" if await runner.stop(job.id.partition("/")[2] or None) else "nothing"

    async def _erase(self, job: EraseJob, deadline: float) -> str:
        user_id, _, session_id = job.id.partition(":")
        runner = await self._application.runner_of_key(session_key(user_id, session_id or new_id()))
        await (runner.erase_session if session_id else runner.erase_user)(until(deadline))
        return "erased"

    async def _send_again(self, job: RunJob, seconds: float, **changes: Any) -> None:
        again = job.model_dump(mode="json", exclude={"traceparent"}) | changes
        await self._application.queue_job(again, delay_seconds=seconds)
