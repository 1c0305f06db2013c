"""The jobs of the run function: dead and handed-over turns, background and scheduled messages, expiry, webhooks."""

import logging
import time
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from omniagent.app.application import Application
from omniagent.app.housekeeping import Housekeeping
from omniagent.app.queues import LONGEST_PAUSE_SECONDS, MAX_TRIES, after_lease, retry_pause
from omniagent.app.webhook import TurnEvent
from omniagent.errors import (
    NotFound,
    NotRegenerable,
    OmniAgentError,
    RequestError,
    TooManyTurns,
    TurnInProgress,
)
from omniagent.session.manager import ID_PATTERN, session_key, user_id_of
from omniagent.settings import Busy
from omniagent.tracing import bind_context, trace_job
from omniagent.turns.query import Query
from omniagent.turns.setup import HAND_OVER_SECONDS

if TYPE_CHECKING:
    from omniagent.ai.operator import TurnOperator

logger = logging.getLogger(__name__)

BUSY_SECONDS: Final = 2
"""The first pause before the next try of a message whose session or user is busy."""
MAX_BUSY_SECONDS: Final = 16
"""The longest such pause: the session may stay busy for hours."""
LOOKS_PER_PAUSE: Final = 15
"""The pause doubles after this many tries."""
MIN_TURN_SECONDS: Final = 30.0
"""With less time left, the next turn is left to another invocation."""


class RunJob(BaseModel):
    """One message of the queue."""

    tries: int = Field(0, ge=0)
    """How often it has failed."""
    traceparent: str = Field("", max_length=128)

    async def send_again(self, application: Application, seconds: float, **changes: Any) -> None:
        """Queue this job again with a delay."""
        again = self.model_dump(mode="json", exclude={"traceparent"}) | changes
        await application.platform.run_queue.send(again, delay_seconds=seconds)

    async def retry_later(self, application: Application) -> None:
        """Have this job, which has failed, done again after a pause."""
        await self.send_again(application, retry_pause(self.tries), tries=self.tries + 1)

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:
        """Do the work before the deadline, a `time.monotonic()`, and return what was done.

        If it raises an `OmniAgentError`, the job is sent again later.
        """
        raise NotImplementedError


class TakeoverJob(RunJob):
    """A turn to continue, if the process of this attempt is dead. `session_id` is the session's key.

    The turn's watch sends it, and sends it again until a later process has begun.
    """

    kind: Literal["takeover"]
    session_id: str = Field(max_length=256)
    turn_id: str = Field(max_length=256)
    attempt: int = Field(0, ge=0)
    handed_over: bool = False
    """The process of this attempt lets go of the turn."""
    watched: bool = False
    """The turn's watch goes on. False for a message from an operator."""

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:
        with bind_context(session_id=self.session_id):
            try:
                return {"status": await self._look(application, deadline)}
            except NotFound:
                return {"status": "not_found"}

    async def retry_later(self, application: Application) -> None:
        if not self.watched:
            await super().retry_later(application)

    async def _look(self, application: Application, deadline: float) -> str:
        if not self.watched and self.tries < MAX_TRIES and application.is_watched:
            await self._watch(application, after_lease(application.settings.lease_seconds))
            self.watched = True
        runner = await application.runner_of_turn(self.session_id)
        patience = HAND_OVER_SECONDS if self.handed_over else 0.0
        seconds = await runner.look(self.turn_id, self.attempt, patience_seconds=patience)
        if seconds is None:
            return "ended"
        if seconds:
            if self.tries >= MAX_TRIES:  # this was the watch's last message, and its process may not have begun
                await self._watch(application, after_lease(seconds), tries=self.tries)
            return "alive"
        try:
            stream = await runner.take_up(deadline=deadline)
        except RequestError as exc:  # a queued message cannot run now
            logger.warning("queued message not run", extra={"cause": f"{type(exc).__name__}: {exc}"})
            if self.tries >= MAX_TRIES:  # this was the watch's last message
                await self._watch(application, LONGEST_PAUSE_SECONDS, tries=self.tries)
            return "refused"
        if stream is None:
            return "settled"
        await stream.ended()
        return "continued"

    async def _watch(self, application: Application, seconds: float, *, tries: int = 0) -> None:
        await application.platform.watch_queue.send_watch(
            self.session_id, self.turn_id, self.attempt, delay_seconds=seconds, tries=tries, takeovers=tries
        )


class ExpiryJob(RunJob):
    """Closes the turns whose requests have expired unanswered. Sent by the schedule."""

    kind: Literal["expiry"]

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:
        closed = await Housekeeping(application).close_expired(time_left=lambda: deadline - time.monotonic())
        return {"status": "closed", "closed": closed}


class BackgroundJob(RunJob):
    """Answers an accepted message from its session's inbox. `session_id` is the session's key."""

    kind: Literal["turn"]
    session_id: str = Field(max_length=256)
    message_id: str = Field(max_length=256)
    category: str | None = Field(None, max_length=256)
    looks: int = Field(0, ge=0)
    """How often its session or its user was busy."""

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:
        with bind_context(session_id=self.session_id):
            try:
                runner = await application.runner_of_accepted(self.session_id, self.category)
                return {"status": await self._answer(application, runner, deadline)}
            except NotFound:
                return {"status": "not_found"}

    async def _answer(self, application: Application, runner: "TurnOperator", deadline: float) -> str:
        """Run the session's turns until the message is answered. If it has to wait, queue this job again."""
        while True:
            try:
                stream = await runner.run_accepted(self.message_id, deadline=deadline)
            except (TurnInProgress, TooManyTurns):
                await self.send_again(application, self._busy_pause(), looks=self.looks + 1)
                return "queued"
            if stream is None:
                return "answered"
            await stream.ended()
            if time.monotonic() > deadline - MIN_TURN_SECONDS:
                await self.send_again(application, 0)
                return "continues"

    def _busy_pause(self) -> float:
        return min(BUSY_SECONDS * 2.0 ** min(self.looks // LOOKS_PER_PAUSE, 10), MAX_BUSY_SECONDS)


class ScheduledJob(RunJob):
    """A message that a schedule sends on behalf of a user. A redelivery has the same message id."""

    model_config = ConfigDict(extra="forbid")

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

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:
        due = self.time.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        session_id = self.session_id or f"{self.schedule}-{due}"
        key = session_key(user_id_of(self.user), session_id)
        runner = await application.runner(self.user, session_id, category=self.category)
        query = Query(self.query, f"{self.schedule}-{due}", busy=self.busy)
        try:
            message_id = await runner.accept(query, on_posted=partial(application.watch_accepted, key))
        except NotRegenerable:
            return {"status": "answered"}  # a redelivery
        except TurnInProgress:
            logger.warning("scheduled message rejected: its session is busy", extra={"schedule": self.schedule})
            return {"status": "rejected"}
        accepted = BackgroundJob(kind="turn", session_id=key, message_id=message_id, category=self.category)
        return await accepted.run(application, deadline)


class WebhookJob(RunJob):
    """Delivers an event to the operator's webhook."""

    kind: Literal["webhook"]
    session_id: str = Field(max_length=256)
    event: TurnEvent

    async def run(self, application: Application, deadline: float) -> dict[str, Any]:  # noqa: ARG002 - a delivery has its own time limit
        is_delivered = await application.announcements.deliver(self.session_id, self.event, again=self.tries > 0)
        return {"status": "delivered" if is_delivered else "dropped", "event": self.event.id}


AnyJob = Annotated[TakeoverJob | ExpiryJob | BackgroundJob | ScheduledJob | WebhookJob, Field(discriminator="kind")]
# Validation errors are logged, so they must not contain the user's text.
_JOBS: Final[TypeAdapter[AnyJob]] = TypeAdapter(AnyJob, config=ConfigDict(hide_input_in_errors=True))


class RunJobs:
    """Does the jobs of the run function."""

    margin_seconds = 5.0
    """Reserved at the end of an invocation to report the result to the queue."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def invoke(self, event: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Do one job: `{"kind": "takeover", "session_id": "<user id>:<id>", "turn_id": "<id>"}`."""
        return await self._serve(_JOBS.validate_python(event), deadline)

    async def take(self, body: str, deadline: float) -> None:
        """Do a queued job. If it fails, send it again with a pause: the queue would redeliver it after many minutes.

        Raises after MAX_TRIES. The queue then moves it to the dead-letter queue.
        """
        job = _JOBS.validate_json(body)
        try:
            await self._serve(job, deadline)
        except OmniAgentError as exc:
            if job.tries >= MAX_TRIES:
                raise
            failure = {"kind": job.kind, "tries": job.tries, "cause": f"{type(exc).__name__}: {exc}"}
            logger.warning("job failed", extra=failure)
            await job.retry_later(self._application)

    async def _serve(self, job: AnyJob, deadline: float) -> dict[str, Any]:
        with trace_job("job", job.traceparent):
            try:
                result = await job.run(self._application, deadline)
            except OmniAgentError as exc:
                await self._application.recover(exc)
                raise
        logger.info("job ended", extra={"kind": job.kind, **result})
        return result
