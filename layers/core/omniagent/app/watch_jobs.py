"""The jobs of the watch function: checks whether the process of a turn is alive, and hands dead turns to `run`.

A check takes seconds at most, so its queue may deliver the message of a killed process again after seconds. The run
function's queue waits 16 minutes, because a turn may take as long.
"""

import logging
import time
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from omniagent.aio import within
from omniagent.app.application import Application
from omniagent.app.queues import MAX_TRIES, after_lease, retry_pause
from omniagent.errors import NotFound, OmniAgentError
from omniagent.tracing import bind_context, trace_job

logger = logging.getLogger(__name__)


class WatchJob(BaseModel):
    """A check of one attempt of a turn. `session_id` is the session's key."""

    model_config = ConfigDict(hide_input_in_errors=True)

    session_id: str = Field(max_length=256)
    turn_id: str = Field(max_length=256)
    attempt: int = Field(0, ge=0)
    tries: int = Field(0, ge=0)
    """The checks in a row that have failed or have found the turn dead."""
    takeovers: int = Field(0, ge=0)
    """The checks that have found the turn dead. Never reset: processes that claim it may die before they begin."""
    traceparent: str = Field("", max_length=128)

    async def check(self, application: Application, seconds: float) -> str:
        """Check the turn within so many seconds, send what follows, and return what was found."""
        lease_left = await within(seconds, self._look(application))
        if lease_left is None:
            return "ended"
        if lease_left:
            await self._send_next(application, after_lease(lease_left))
            return "alive"
        # If this process dies in between, the redelivered check sends a second takeover, which finds the turn alive. In
        # the other order it would send a second chain of checks.
        is_last = max(self.tries, self.takeovers) >= MAX_TRIES
        tries = MAX_TRIES if is_last else self.tries
        await application.platform.run_queue.send_takeover(self.session_id, self.turn_id, self.attempt, tries=tries)
        if not is_last:
            self.takeovers += 1
            await self.check_later(application)
        return "dead"

    async def check_later(self, application: Application) -> None:
        """Send the next check after a pause that doubles each time."""
        await self._send_next(application, retry_pause(self.tries), tries=self.tries + 1)

    async def _look(self, application: Application) -> float | None:
        """See `TurnOperator.look`. If the turn has ended, a missed event of it is queued."""
        runner = await application.runner_of_turn(self.session_id)
        lease_left = await runner.look(self.turn_id, self.attempt)
        if lease_left is None:
            await application.announcements.announce_missed(self.session_id, self.turn_id)
        return lease_left

    async def _send_next(self, application: Application, seconds: float, *, tries: int = 0) -> None:
        await application.platform.watch_queue.send_watch(
            self.session_id,
            self.turn_id,
            self.attempt,
            delay_seconds=seconds,
            tries=tries,
            takeovers=self.takeovers,
        )


class WatchJobs:
    """Does the jobs of the watch function."""

    margin_seconds = 2.0
    """Reserved at the end of an invocation to send the next check, if this one takes too long."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def invoke(self, event: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Do one check: `{"session_id": "<user id>:<id>", "turn_id": "<id>"}`."""
        await self._serve(WatchJob.model_validate(event), deadline - time.monotonic())
        return {}

    async def take(self, body: str, deadline: float) -> None:
        """Do a queued check."""
        await self._serve(WatchJob.model_validate_json(body), deadline - time.monotonic())

    async def _serve(self, watch: WatchJob, seconds: float) -> None:
        """Do one check. If it fails, the next one is sent after a pause. Raises after MAX_TRIES."""
        with bind_context(session_id=watch.session_id), trace_job("watch", watch.traceparent):
            try:
                status = await watch.check(self._application, seconds)
            except NotFound:
                status = "not_found"
            except (OmniAgentError, TimeoutError) as exc:
                if isinstance(exc, OmniAgentError):  # a check that took too long may still be connecting
                    await self._application.recover(exc)
                if watch.tries >= MAX_TRIES:
                    raise
                details = {"turn_id": watch.turn_id, "tries": watch.tries, "cause": f"{type(exc).__name__}: {exc}"}
                logger.warning("check failed", extra=details)
                await watch.check_later(self._application)
                return
            logger.info("turn checked", extra={"turn_id": watch.turn_id, "attempt": watch.attempt, "status": status})
