"""The handler of a function that does jobs: messages of its queue, or one job that invokes it."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from omniagent.invocation import invocation_end
from omniagent.lambda_runtime import event_loop
from omniagent.tracing import bind_context, flush_traces

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 2.0
"""The longest wait for the trace collector."""
LAST_SECONDS: Final = 0.5
"""Not spent on traces: a process that is killed at its deadline has its messages delivered again."""


class Jobs(Protocol):
    """Does the jobs of one function."""

    async def invoke(self, event: dict[str, Any]) -> dict[str, Any]:
        """Do the job that the function was invoked with, and return what was done."""

    async def take(self, body: str, *, queue: str) -> None:
        """Do the job of a message of the queue with this name. If it raises, the queue delivers the message again."""


def job_handler(jobs: Jobs) -> "Callable[[dict[str, Any], LambdaContext], dict[str, Any]]":
    """Return the handler. A message that cannot be read or done is a failed item, never an error of the function."""

    def handler(event: dict[str, Any], context: "LambdaContext") -> dict[str, Any]:
        return event_loop.run(_handled(jobs, event, context))

    return handler


async def _handled(jobs: Jobs, event: dict[str, Any], context: "LambdaContext") -> dict[str, Any]:
    end = time.monotonic() + context.get_remaining_time_in_millis() / 1000
    invocation_end.set(end)
    with bind_context(request_id=context.aws_request_id):
        try:
            if "Records" not in event:
                return await jobs.invoke(event)
            failed = [each["messageId"] for each in event["Records"] if not await _is_done(jobs, each)]
            return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}
        finally:
            await flush_traces(min(FLUSH_SECONDS, end - LAST_SECONDS - time.monotonic()))


async def _is_done(jobs: Jobs, record: dict[str, Any]) -> bool:
    try:
        queue = record["eventSourceARN"].rpartition(":")[2]
        # A task, so that what a job binds to its context ends with it.
        await asyncio.create_task(jobs.take(record["body"], queue=queue))
    except Exception:
        logger.exception("job failed", extra={"message_id": record["messageId"]})
        return False
    return True
