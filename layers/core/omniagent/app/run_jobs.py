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
from omniagent.app.sweep import Sweeper, finish
from omniagent.app.webhook import TurnEvent, deliver
from omniagent.errors import NotFound, NotRegenerable, OmniAgentError, TooManyTurns, TurnInProgress
from omniagent.invocation import deadline
from omniagent.persistence.catalog import Catalog
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
REPORT_MARGIN_SECONDS: Final = 5.0
"""Reserved at the end of an invocation to report the result to the queue."""
ERASE_SECONDS: Final = 45.0
"""How long a sweep deletes. The next one, a minute later, goes on."""


class RunJob(BaseModel):
    """One message of the queue, or what invokes the function."""

    tries: int = Field(0, ge=0)
    """How often it has failed."""
    traceparent: str = Field("", max_length=128)

    @property
    def key(self) -> str:
        """The key of the job's session. Empty: it has none."""
        return ""

    async def do(self, application: Application) -> dict[str, Any]:
        """Do the work before the end of the invocation, and return what was done."""
        raise NotImplementedError

    async def send_again(self, application: Application, seconds: float, **changes: Any) -> None:
        again = self.model_dump(mode="json", exclude={"traceparent"}) | changes
        await application.queue_job(again, delay_seconds=seconds)


class SessionJob(RunJob):
    """Does what a session needs: finishes a turn whose process died or handed it over, answers messages in line.

    `session_id` is the session's key.
    """

    kind: Literal["run"]
    session_id: str = Field(max_length=256)

    @property
    def key(self) -> str:
        return self.session_id

    async def do(self, application: Application) -> dict[str, Any]:
        try:
            # The end of the last turn has queued the session if there is more.
            ended = await finish(await application.runner_of_key(self.key), deadline(REPORT_MARGIN_SECONDS))
        except TooManyTurns:
            await self.send_again(application, BUSY_SECONDS)
            return {"status": "busy"}
        except NotFound:
            return {"status": "not_found"}
        return {"status": "ran" if ended else "nothing"}


class WebhookJob(SessionJob):
    """Delivers an event to the operator's webhook, unless none is set, or the session's user is deleted."""

    kind: Literal["webhook"]  # type: ignore[assignment]  # it has a session, too
    event: TurnEvent

    async def do(self, application: Application) -> dict[str, Any]:
        platform, url = application.platform, application.settings.webhook_url
        address = await (await application.store()).address_of(self.key)
        if address is None or not url:
            return {"status": "dropped", "event": self.event.id}
        secret = await platform.secret("webhook", refresh=self.tries > 0)
        body = self.event.body(user=address.user, session_id=address.session_id)
        await deliver(url, self.event.id, body, secret)
        return {"status": "delivered", "event": self.event.id}


class SweepJob(RunJob):
    """Finds sessions that need somebody, and queues a job for each. Deletes what is marked. Sent by the schedule."""

    kind: Literal["sweep"]

    async def do(self, application: Application) -> dict[str, Any]:
        sweeper = Sweeper(await application.store(), application.runner_at, application.settings)
        found, end = await sweeper.find(), deadline(REPORT_MARGIN_SECONDS)
        for address in found:
            if time.monotonic() > end:
                break  # the next sweep finds the rest
            await application.queue_run(address.key)
        announced = 0
        if application.settings.webhook_url:
            catalog, before = Catalog(await application.store()), datetime.now(UTC) - UNANNOUNCED_AFTER
            for key, answer in await catalog.unannounced(before, UNANNOUNCED_PIECE):
                await application.announce(key, answer)
                announced += 1
        if failed := await sweeper.delete(until(min(end, time.monotonic() + ERASE_SECONDS))):
            raise OmniAgentError(f"{failed} deletions failed")  # the alarm; the next sweep tries again
        return {"status": "swept", "sessions": len(found), "events": announced}


class ScheduledJob(RunJob):
    """A message that a schedule sends on behalf of a user, to be put in line. Its turn is a job of its own.

    A redelivery has the same message id.
    """

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

    async def do(self, application: Application) -> dict[str, Any]:
        runner = await application.runner(self.user, self.session_id or self.message_id, category=self.category)
        try:
            await runner.accept(Query(self.query, self.message_id, busy=self.busy, agent=self.agent))
        except NotRegenerable:
            return {"status": "answered"}  # a redelivery
        except TurnInProgress:
            logger.warning("scheduled message rejected: its session is busy", extra={"schedule": self.schedule})
            return {"status": "rejected"}
        return {"status": "accepted"}


class ListJob(RunJob):
    """Lists the turns of all users that run, wait or are in line, without their text. Sent by an operator."""

    kind: Literal["turns"]

    async def do(self, application: Application) -> dict[str, Any]:
        found = await Catalog(await application.store()).live_turns(LISTED_SESSIONS)
        turns = [info | {"id": f"{info['session_id']}/{info['message_id']}"} for info in found]
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

    async def do(self, application: Application) -> dict[str, Any]:
        try:
            runner = await application.runner_of_key(self.key)
            status = "stopped" if await runner.stop(self.id.partition("/")[2] or None) else "nothing"
        except NotFound:
            status = "not_found"
        return {"status": status, "id": self.id}


class EraseJob(RunJob):
    """Deletes a session, by its key, or a user, by their id, with everything of theirs. Sent by an operator."""

    kind: Literal["erase"]
    id: str = Field(pattern=r"^[0-9a-f]{24}(:[^/:]{1,128})?$")

    @property
    def key(self) -> str:
        return self.id

    async def do(self, application: Application) -> dict[str, Any]:
        user_id, _, session_id = self.id.partition(":")
        try:
            runner = await application.runner_of_key(session_key(user_id, session_id or new_id()))
            await (runner.erase_session if session_id else runner.erase_user)(until(deadline(REPORT_MARGIN_SECONDS)))
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

    def __init__(self, application: Application) -> None:
        self._application = application

    async def invoke(self, event: dict[str, Any]) -> dict[str, Any]:
        """Do one job: `{"kind": "run", "session_id": "<user id>:<id>"}`."""
        return await self._serve(_INVOKED.validate_python(event))

    async def take(self, body: str, *, queue: str) -> None:
        """Do a queued job. If it fails, send it again with a pause: the queue would redeliver it after many minutes.

        Raises after MAX_TRIES. The queue then moves it to the dead-letter queue. The other functions may send to the
        run queue, so it brings no schedule, which acts for any user. Another queue brings nothing else, and redelivers
        what failed.
        """
        run_queue = self._application.platform.run_queue
        if run_queue is None or queue != run_queue.name:
            await self._serve(ScheduledJob.model_validate_json(body))
            return
        job = _QUEUED.validate_json(body)
        try:
            await self._serve(job)
        except OmniAgentError as exc:
            if job.tries >= MAX_TRIES:
                raise
            failure = {"kind": job.kind, "tries": job.tries, "cause": f"{type(exc).__name__}: {exc}"}
            logger.warning("job failed", extra=failure)
            pause = min(FIRST_PAUSE_SECONDS * 2.0**job.tries, LONGEST_PAUSE_SECONDS)
            await job.send_again(self._application, pause, tries=job.tries + 1)

    async def _serve(self, job: InvokedJob) -> dict[str, Any]:
        async with self._application.job(job.key, job.traceparent):
            result = await job.do(self._application)
        facts = {name: value for name, value in result.items() if name != "turns"}
        logger.info("job ended", extra={"kind": job.kind, **facts})
        return result
