"""SQS: sends JSON messages to one queue."""

import json
from typing import Any, Final
from urllib.parse import urlsplit

from omniagent.aws.client import SQS, AwsJson, AwsRefused, AwsUnreachable, endpoint_override
from omniagent.errors import ConfigurationError, QueueUnavailable
from omniagent.tracing import current_traceparent

MAX_DELAY_SECONDS: Final = 900
"""The longest delay that SQS allows."""


class SqsQueue:
    """Sends JSON messages to one queue. Its connections belong to one event loop."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._url = url
        self.name = url.rpartition("/")[2]
        self._api = AwsJson(
            SQS, region=_region(parts.netloc), endpoint=endpoint_override("sqs") or f"{parts.scheme}://{parts.netloc}"
        )

    async def send(self, message: dict[str, Any], *, delay_seconds: float = 0) -> None:
        """Send a message, to be delivered after the delay.

        Raises `QueueUnavailable`, or `ConfigurationError` when there is no such queue or no permission.
        """
        if traceparent := current_traceparent():  # the job continues the sender's trace
            message = {**message, "traceparent": traceparent}
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


def _region(host: str) -> str | None:
    """Return the region that a queue's host names (`sqs.<region>.amazonaws.com`), else None."""
    labels = host.split(".")
    return labels[1] if len(labels) >= 4 and labels[0] == "sqs" and labels[2] == "amazonaws" else None
