"""The watch function: checks whether the process of a turn is alive, and hands dead turns to the run function.

It is invoked by its queue, one message at a time. It takes seconds at most, so its queue may deliver the message of a
killed process again after seconds. The run function's queue waits 16 minutes, because a turn may take as long.
"""

import logging
import time
from typing import Any, Final

from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import BaseModel, ConfigDict, Field

from omniagent.aio import within
from omniagent.aws.invocation_end import ends_within
from omniagent.aws.queues import MAX_TRIES, after_lease, retry_pause
from omniagent.aws.services import get_services
from omniagent.errors import NotFound, OmniAgentError
from omniagent.lambda_runtime import event_loop
from omniagent.lambda_runtime.snapshots import before_snapshot
from omniagent.tracing import bind_context, flush_traces, trace_job
from omniagent.tracing.logs import bind_request_id
from project import project

logger = logging.getLogger(__name__)
services = get_services(project)
before_snapshot(services.close)

MARGIN_SECONDS: Final = 2.0
"""Reserved at the end of an invocation to send the next check, if this one takes too long."""
FLUSH_SECONDS: Final = 2.0
"""The longest wait for the trace collector."""
LAST_SECONDS: Final = 0.5
"""Not spent on traces. A process that is killed after it has sent the next check leaves two: its own comes again."""


class Watch(BaseModel):
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

    async def check(self, seconds: float) -> str:
        """Check the turn within so many seconds, send what follows, and return what was found."""
        lease_left = await within(seconds, self._look())
        if lease_left is None:
            return "ended"
        if lease_left:
            await self._send_next(after_lease(lease_left))
            return "alive"
        # If this process dies in between, the redelivered check sends a second takeover, which finds the turn alive. In
        # the other order it would send a second chain of checks.
        is_last = max(self.tries, self.takeovers) >= MAX_TRIES
        tries = MAX_TRIES if is_last else self.tries
        await services.run_queue.send_takeover(self.session_id, self.turn_id, self.attempt, tries=tries)
        if not is_last:
            self.takeovers += 1
            await self.check_later()
        return "dead"

    async def check_later(self) -> None:
        """Send the next check after a pause that doubles each time."""
        await self._send_next(retry_pause(self.tries), tries=self.tries + 1)

    async def _look(self) -> float | None:
        """See `Runner.look`. If the turn has ended, a missed event of it is queued."""
        runner = await services.runner_of_turn(self.session_id)
        lease_left = await runner.look(self.turn_id, self.attempt)
        if lease_left is None:
            await services.announcements.announce_missed(self.session_id, self.turn_id)
        return lease_left

    async def _send_next(self, seconds: float, *, tries: int = 0) -> None:
        await services.watch_queue.send_watch(
            self.session_id,
            self.turn_id,
            self.attempt,
            delay_seconds=seconds,
            tries=tries,
            takeovers=self.takeovers,
        )


def handler(event: dict[str, Any], context: LambdaContext) -> None:
    """Handle a queue message. The queue redelivers one that raises, and finally moves it to the dead-letter queue."""
    seconds_left = context.get_remaining_time_in_millis() / 1000
    flush_by = time.monotonic() + seconds_left - LAST_SECONDS
    with bind_request_id(context.aws_request_id), ends_within(seconds_left):
        try:
            for record in event["Records"]:  # always one, so that each has all the time
                event_loop.run(serve(Watch.model_validate_json(record["body"]), seconds_left - MARGIN_SECONDS))
        finally:
            event_loop.run(flush_traces(min(FLUSH_SECONDS, flush_by - time.monotonic())))


async def serve(watch: Watch, seconds: float) -> None:
    """Do one check. If it fails, the next one is sent after a pause. Raises after MAX_TRIES."""
    with bind_context(session_id=watch.session_id), trace_job("watch", watch.traceparent):
        try:
            status = await watch.check(seconds)
        except NotFound:
            status = "not_found"
        except (OmniAgentError, TimeoutError) as exc:
            if isinstance(exc, OmniAgentError):  # a check that took too long may still be connecting
                await services.recover(exc)
            if watch.tries >= MAX_TRIES:
                raise
            details = {"turn_id": watch.turn_id, "tries": watch.tries, "cause": f"{type(exc).__name__}: {exc}"}
            logger.warning("check failed", extra=details)
            await watch.check_later()
            return
        logger.info("turn checked", extra={"turn_id": watch.turn_id, "attempt": watch.attempt, "status": status})
