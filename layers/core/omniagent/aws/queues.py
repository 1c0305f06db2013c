"""SQS queues."""

import json
import math
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from omniagent.aws.http_pool import AwsRefused, AwsUnreachable
from omniagent.aws.json_api import SQS, AwsJson, endpoint_override
from omniagent.errors import ConfigurationError, NoQueue, QueueUnavailable
from omniagent.tracing import current_traceparent

MAX_DELAY_SECONDS: Final = 900
"""The longest delay that SQS allows."""
MAX_TRIES: Final = 10
"""How often a job that fails is sent again. Its pauses double, and together last most of an hour."""
FIRST_PAUSE_SECONDS: Final = 5


class SqsQueue:
    """Sends JSON messages to one queue. Its connections belong to one event loop."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._url = url
        self._api = AwsJson(
            SQS, region=_region(parts.netloc), endpoint=endpoint_override("sqs") or f"{parts.scheme}://{parts.netloc}"
        )

    async def send(self, message: dict[str, Any], *, delay_seconds: float = 0) -> None:
        """Send a message, to be delivered after the delay.

        Raises `QueueUnavailable`, or `ConfigurationError` when there is no such queue or no permission.
        """
        arguments: dict[str, Any] = {"QueueUrl": self._url, "MessageBody": json.dumps(message)}
        if delay_seconds > 0:
            arguments["DelaySeconds"] = min(round(delay_seconds), MAX_DELAY_SECONDS)
        try:
            await self._api.call("SendMessage", **arguments)
        except AwsUnreachable as exc:
            raise QueueUnavailable(f"SQS: {exc}") from exc
        except AwsRefused as exc:
            raise ConfigurationError(f"SQS queue {self._url}: {exc}") from exc

    async def aclose(self) -> None:
        await self._api.aclose()


class JobQueue:
    """Sends work to a function. Without a URL, every send raises `NoQueue`."""

    def __init__(self, url: str) -> None:
        self._queue = SqsQueue(url) if url else None

    async def close(self) -> None:
        if self._queue is not None:
            await self._queue.aclose()

    async def _send(self, message: dict[str, Any], delay_seconds: float = 0) -> None:
        if self._queue is None:
            raise NoQueue
        if traceparent := current_traceparent():  # the job continues the sender's trace
            message = {**message, "traceparent": traceparent}
        await self._queue.send(message, delay_seconds=delay_seconds)


class RunQueue(JobQueue):
    """Sends work to the run function. Every message names its `kind`."""

    async def send(self, message: dict[str, Any], *, delay_seconds: float = 0) -> None:
        """Queue a message of any kind, to be delivered after the delay."""
        await self._send(message, delay_seconds)

    async def send_takeover(
        self, key: str, turn_id: str, attempt: int, *, tries: int = 0, handed_over: bool = False
    ) -> None:
        """Queue a turn to be continued. `handed_over`: this attempt's process is letting go of it.

        The turn's watch goes on: if the run function dies as well, the watch sends this again.
        """
        turn = {"session_id": key, "turn_id": turn_id, "attempt": attempt}
        await self.send({"kind": "watch", **turn, "tries": tries, "handed_over": handed_over, "watched": True})


class WatchQueue(JobQueue):
    """Sends watches to the watch function: checks of turns."""

    async def send_watch(
        self, key: str, turn_id: str, attempt: int, *, delay_seconds: float = 0, tries: int = 0, takeovers: int = 0
    ) -> None:
        """Queue a check of the turn's given attempt after the delay.

        `tries` counts the checks in a row that have failed or have found the turn dead, `takeovers` all that have found
        it dead. Either ends the watch at MAX_TRIES.
        """
        turn = {"session_id": key, "turn_id": turn_id, "attempt": attempt}
        await self._send({**turn, "tries": tries, "takeovers": takeovers}, delay_seconds)


class SummaryQueue(JobQueue):
    """Sends work to the summary function: summaries, and deletions too large for one request."""

    async def send(self, key: str, *, rebuild: bool = False) -> None:
        """Queue the summary of the session with this key."""
        await self._send({"session_id": key, "rebuild": rebuild})

    async def send_erasure(self, key: str) -> None:
        """Queue the rest of a session's deletion."""
        await self._send({"session_id": key, "erase": True})

    async def send_user_erasure(self, user_id: str, before: datetime, *, delay_seconds: float = 0) -> None:
        """Queue the rest of a user's deletion, which began at `before`. The id is the hash of the user's name."""
        await self._send({"user_id": user_id, "erase": True, "before": before.isoformat()}, delay_seconds)

    async def send_retention(self) -> None:
        """Queue the rest of a retention run."""
        await self._send({"retention": True})


def retry_pause(tries: int) -> float:
    """Return the seconds until a job that has failed so often is tried again."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(tries, MAX_TRIES), MAX_DELAY_SECONDS)


def after_lease(seconds: float) -> int:
    """Return the delay until a lease has expired. SQS counts whole seconds; one more makes sure."""
    return math.ceil(seconds) + 1


def _region(host: str) -> str | None:
    """Return the region that a queue's host names (`sqs.<region>.amazonaws.com`), else None."""
    labels = host.split(".")
    return labels[1] if len(labels) >= 4 and labels[0] == "sqs" and labels[2] == "amazonaws" else None
