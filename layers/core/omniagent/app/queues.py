"""The messages that one part of a deployment sends to another, and when failed ones are sent again."""

from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, Protocol

from omniagent.errors import NoQueue, NoRunQueue
from omniagent.tracing import bind_context, current_traceparent

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
    """Sends jobs. Without a queue, every send raises `NoQueue`."""

    _missing: ClassVar[type[NoQueue]] = NoQueue

    def __init__(self, queue: Queue | None = None) -> None:
        self._queue = queue
        self.exists = queue is not None

    @property
    def name(self) -> str:
        """The queue's name. If there is none, it is the name of no queue."""
        return self._queue.name if self._queue is not None else "-"

    async def aclose(self) -> None:
        if self._queue is not None:
            await self._queue.aclose()

    async def send(self, message: dict[str, Any], *, delay_seconds: float = 0) -> None:
        """Queue a message, to be delivered after the delay."""
        if self._queue is None:
            raise self._missing
        if traceparent := current_traceparent():  # the job continues the sender's trace
            message = {**message, "traceparent": traceparent}
        await self._queue.send(message, delay_seconds=delay_seconds)


class RunQueue(JobQueue):
    """Sends work to the run function. Every message names its `kind`."""

    _missing = NoRunQueue

    async def send_run(self, key: str) -> None:
        """Queue a session that has work: a turn that was handed over or is dead, or messages in line."""
        await self.send({"kind": "run", "session_id": key})


class SummaryQueue(JobQueue):
    """Sends summaries to the summary function."""

    async def send_summary(self, key: str, *, rebuild: bool = False) -> None:
        """Queue the summary of the session with this key."""
        await self.send({"session_id": key, "rebuild": rebuild})


def retry_pause(tries: int) -> float:
    """Return the seconds until a job that has failed so often is tried again."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(tries, MAX_TRIES), LONGEST_PAUSE_SECONDS)


def bind_key(key: str) -> AbstractContextManager[None]:
    """Log and trace with the ids of the session of a key while the context lasts. An empty key binds nothing."""
    user_id, _, session_id = key.partition(":")
    return bind_context(session_id=session_id or None, user_id=user_id or None)
