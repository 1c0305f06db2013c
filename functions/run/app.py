"""The run function: continues turns whose process died or handed them over. It also runs background turns.

It is invoked by its queue, one message at a time, by a schedule, or directly.
"""

import logging
import time
from datetime import UTC
from functools import partial
from typing import Annotated, Any, Final, Literal

from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from omniagent.ai.runner import Runner
from omniagent.aws.housekeeping import Housekeeping
from omniagent.aws.invocation_end import ends_within
from omniagent.aws.queues import MAX_DELAY_SECONDS, MAX_TRIES, after_lease, retry_pause
from omniagent.aws.services import get_services
from omniagent.aws.webhook import TurnEvent
from omniagent.errors import (
    NotFound,
    NotRegenerable,
    OmniAgentError,
    RequestError,
    TooManyTurns,
    TurnInProgress,
    WebhookFailed,
)
from omniagent.lambda_runtime import event_loop
from omniagent.lambda_runtime.snapshots import before_snapshot
from omniagent.session.manager import ID_PATTERN, session_key, user_id_of
from omniagent.settings import Busy
from omniagent.tracing import bind_context, flush_traces, trace_job
from omniagent.tracing.logs import bind_request_id
from omniagent.turns.query import Query
from omniagent.turns.setup import HAND_OVER_SECONDS
from project import project

logger = logging.getLogger(__name__)
services = get_services(project)
before_snapshot(services.close, services.load)

MARGIN_SECONDS: Final = 5.0
"""Reserved at the end of an invocation to report the result to the queue."""
BUSY_SECONDS: Final = 2
"""The first pause before the next try of a message whose session or user is busy."""
MAX_BUSY_SECONDS: Final = 16
"""The longest such pause: the session may stay busy for hours."""
LOOKS_PER_PAUSE: Final = 15
"""The pause doubles after this many tries."""
MIN_TURN_SECONDS: Final = 30.0
"""With less time left, the next turn is left to another invocation."""


class Job(BaseModel):
    """One message of the queue."""

    tries: int = Field(0, ge=0)
    """How often it has failed."""
    traceparent: str = Field("", max_length=128)

    async def send_again(self, seconds: float, **changes: Any) -> None:
        """Queue this job again with a delay."""
        again = self.model_dump(mode="json", exclude={"traceparent"}) | changes
        await services.run_queue.send(again, delay_seconds=seconds)

    async def retry_later(self) -> None:
        """Have this job, which has failed, done again after a pause."""
        await self.send_again(retry_pause(self.tries), tries=self.tries + 1)

    async def run(self, deadline: float) -> dict[str, Any]:
        """Do the work before the deadline, a `time.monotonic()`, and return what was done.

        If it raises an `OmniAgentError`, the job is sent again later.
        """
        raise NotImplementedError


class Takeover(Job):
    """A turn to continue, if the process of this attempt is dead. `session_id` is the session's key.

    The turn's watch sends it, and sends it again until a later process has begun.
    """

    kind: Literal["watch"]
    session_id: str = Field(max_length=256)
    turn_id: str = Field(max_length=256)
    attempt: int = Field(0, ge=0)
    handed_over: bool = False
    """The process of this attempt lets go of the turn."""
    watched: bool = False
    """The turn's watch goes on. False for a message from an operator, or from a version without the watch function."""

    async def run(self, deadline: float) -> dict[str, Any]:
        with bind_context(session_id=self.session_id):
            try:
                return {"status": await self._look(deadline)}
            except NotFound:
                return {"status": "not_found"}

    async def retry_later(self) -> None:
        if not self.watched:
            await super().retry_later()

    async def _look(self, deadline: float) -> str:
        if not self.watched and self.tries < MAX_TRIES and services.is_watched:
            await self._watch(after_lease(services.settings.lease_seconds))
            self.watched = True
        runner = await services.runner_of_turn(self.session_id)
        patience = HAND_OVER_SECONDS if self.handed_over else 0.0
        seconds = await runner.look(self.turn_id, self.attempt, patience_seconds=patience)
        if seconds is None:
            return "ended"
        if seconds:
            if self.tries >= MAX_TRIES:  # this was the watch's last message, and its process may not have begun
                await self._watch(after_lease(seconds), tries=self.tries)
            return "alive"
        try:
            stream = await runner.take_up(deadline=deadline)
        except RequestError as exc:  # a queued message cannot run now
            logger.warning("message that waits not run", extra={"cause": f"{type(exc).__name__}: {exc}"})
            if self.tries >= MAX_TRIES:  # this was the watch's last message
                await self._watch(MAX_DELAY_SECONDS, tries=self.tries)
            return "refused"
        if stream is None:
            return "settled"
        await stream.ended()
        return "continued"

    async def _watch(self, seconds: float, *, tries: int = 0) -> None:
        await services.watch_queue.send_watch(
            self.session_id, self.turn_id, self.attempt, delay_seconds=seconds, tries=tries, takeovers=tries
        )


class Expiry(Job):
    """Closes the turns whose requests have expired unanswered. Sent by the schedule."""

    kind: Literal["expiry"]

    async def run(self, deadline: float) -> dict[str, Any]:
        closed = await Housekeeping(services).close_expired(time_left=lambda: deadline - time.monotonic())
        return {"status": "closed", "closed": closed}


class BackgroundTurn(Job):
    """Answers an accepted message from its session's inbox. `session_id` is the session's key."""

    kind: Literal["turn"]
    session_id: str = Field(max_length=256)
    message_id: str = Field(max_length=256)
    category: str | None = Field(None, max_length=256)
    looks: int = Field(0, ge=0)
    """How often its session or its user was busy."""

    async def run(self, deadline: float) -> dict[str, Any]:
        with bind_context(session_id=self.session_id):
            try:
                runner = await services.runner_of_accepted(self.session_id, self.category)
                return {"status": await self._answer(runner, deadline)}
            except NotFound:
                return {"status": "not_found"}

    async def _answer(self, runner: Runner, deadline: float) -> str:
        """Run the session's turns until the message is answered. If it has to wait, queue this job again."""
        while True:
            try:
                stream = await runner.run_accepted(self.message_id, deadline=deadline)
            except (TurnInProgress, TooManyTurns):
                await self.send_again(self._busy_pause(), looks=self.looks + 1)
                return "waits"
            if stream is None:
                return "answered"
            await stream.ended()
            if time.monotonic() > deadline - MIN_TURN_SECONDS:
                await self.send_again(0)
                return "continues"

    def _busy_pause(self) -> float:
        return min(BUSY_SECONDS * 2.0 ** min(self.looks // LOOKS_PER_PAUSE, 10), MAX_BUSY_SECONDS)


class ScheduledTurn(Job):
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

    async def run(self, deadline: float) -> dict[str, Any]:
        due = self.time.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        session_id = self.session_id or f"{self.schedule}-{due}"
        key = session_key(user_id_of(self.user), session_id)
        runner = await services.runner(self.user, session_id, category=self.category)
        query = Query(self.query, f"{self.schedule}-{due}", busy=self.busy)
        try:
            message_id = await runner.accept(query, on_posted=partial(services.watch_accepted, key))
        except NotRegenerable:
            return {"status": "answered"}  # a redelivery
        except TurnInProgress:
            logger.warning("scheduled message rejected: its session is busy", extra={"schedule": self.schedule})
            return {"status": "rejected"}
        accepted = BackgroundTurn(kind="turn", session_id=key, message_id=message_id, category=self.category)
        return await accepted.run(deadline)


class WebhookDelivery(Job):
    """Delivers an event to the operator's webhook."""

    kind: Literal["webhook"]
    session_id: str = Field(max_length=256)
    event: TurnEvent

    async def run(self, deadline: float) -> dict[str, Any]:  # noqa: ARG002 - a delivery has its own time limit
        is_delivered = await services.announcements.deliver(self.session_id, self.event, again=self.tries > 0)
        return {"status": "delivered" if is_delivered else "dropped", "event": self.event.id}


AnyJob = Annotated[Takeover | Expiry | BackgroundTurn | ScheduledTurn | WebhookDelivery, Field(discriminator="kind")]
# Validation errors are logged, so they must not contain the user's text.
JOBS: Final[TypeAdapter[AnyJob]] = TypeAdapter(AnyJob, config=ConfigDict(hide_input_in_errors=True))


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Handle a queue message, or one job: `{"kind": "watch", "session_id": "<user id>:<id>", "turn_id": "<id>"}`.

    The queue redelivers a message that raises or is reported as failed, and finally moves it to the dead-letter queue.
    """
    seconds_left = context.get_remaining_time_in_millis() / 1000
    deadline = time.monotonic() + seconds_left - MARGIN_SECONDS
    with bind_request_id(context.aws_request_id), ends_within(seconds_left):
        try:
            if "Records" not in event:
                return event_loop.run(serve(JOBS.validate_python(event), deadline))
            failures = [
                {"itemIdentifier": record["messageId"]}
                for record in event["Records"]  # always one, so that a turn that kills its process affects no other job
                if not event_loop.run(_take(JOBS.validate_json(record["body"]), deadline))
            ]
            return {"batchItemFailures": failures}
        finally:
            event_loop.run(flush_traces())


async def serve(job: AnyJob, deadline: float) -> dict[str, Any]:
    """Do one job and return what was done."""
    with trace_job("job", job.traceparent):
        try:
            result = await job.run(deadline)
        except OmniAgentError as exc:
            await services.recover(exc)
            raise
    logger.info("job ended", extra={"kind": job.kind, **result})
    return result


async def _take(job: AnyJob, deadline: float) -> bool:
    """Do a queued job. If it fails, send it again with a pause: the queue would redeliver it only after many minutes.

    Raises after MAX_TRIES. Returns False instead if the webhook's server is down: this function has not failed, and a
    raised error would roll its deployment back.
    """
    try:
        await serve(job, deadline)
    except OmniAgentError as exc:
        failure = {"kind": job.kind, "tries": job.tries, "cause": f"{type(exc).__name__}: {exc}"}
        if job.tries < MAX_TRIES:
            logger.warning("job failed", extra=failure)
            await job.retry_later()
        elif isinstance(exc, WebhookFailed):
            logger.error("webhook not delivered", extra=failure)  # noqa: TRY400 - the cause is in it
            return False
        else:
            raise
    return True
