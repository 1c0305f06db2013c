"""The messages that one part of a deployment sends to another, and when failed ones are sent again."""

from typing import Any, Final, Protocol

from omniagent.errors import NoQueue
from omniagent.tracing import current_traceparent

LONGEST_PAUSE_SECONDS: Final = 900
"""The longest pause before a job is tried again, which is also the longest delay of a message."""
MAX_TRIES: Final = 10
"""How often a job that fails is sent again. Its pauses double, and together last most of an hour."""
FIRST_PAUSE_SECONDS: Final = 5


class Queue(Protocol):
    """Delivers JSON messages to the process that does the jobs."""

    @property
    def name(self) -> str:
        """The name that a delivered message says it came from."""

    async def send(self, message: dict[str, Any], *, delay_seconds: float = 0) -> None:
        """Send a message, to be delivered after the delay. Raises `QueueUnavailable`."""

    async def aclose(self) -> None:
        """Close its connections. The next send opens new ones."""


class JobQueue:
    """Sends jobs. Without a queue, every send raises `missing`."""

    def __init__(self, queue: Queue | None = None, *, missing: type[NoQueue] = NoQueue) -> None:
        self._queue = queue
        self._missing = missing
        self.exists = queue is not None
        self.name = "-" if queue is None else queue.name
        """The queue's name. If there is none, it is the name of no queue."""

    async def aclose(self) -> None:
        if self._queue is not None:
            await self._queue.aclose()

    async def send(self, message: dict[str, Any], *, delay_seconds: float = 0) -> None:
        """Queue a message, to be delivered after the delay. Every message of the run queue names its `kind`."""
        if self._queue is None:
            raise self._missing
        if traceparent := current_traceparent():  # the job continues the sender's trace
            message = {**message, "traceparent": traceparent}
        await self._queue.send(message, delay_seconds=delay_seconds)


def retry_pause(tries: int) -> float:
    """Return the seconds until a job that has failed so often is tried again."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(tries, MAX_TRIES), LONGEST_PAUSE_SECONDS)
