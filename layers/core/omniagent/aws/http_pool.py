"""Connections to AWS, and the two ways in which a call fails."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpcore2


class AwsUnreachable(Exception):
    """The service did not answer, or cannot serve the call now. A retry may help."""


class AwsRefused(Exception):
    """The service refused the call. `code` is AWS's name for the reason, `answer` the whole response."""

    def __init__(self, code: str, answer: Mapping[str, Any]) -> None:
        super().__init__(f"{code}: {answer.get('message') or answer.get('Message') or 'no message'}")
        self.code = code
        self.answer = answer


def open_pool(most: int | None = 10) -> "httpcore2.AsyncConnectionPool":
    """Open a pool of up to `most` connections, without a limit for None."""
    import httpcore2  # shared with the model's client, which loads it anyway

    from omniagent.network import AsyncioBackend
    from omniagent.tls import tls_context

    return httpcore2.AsyncConnectionPool(
        ssl_context=tls_context(), max_connections=most, network_backend=AsyncioBackend()
    )


def timeouts(seconds: float) -> dict[str, dict[str, float]]:
    return {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), seconds)}
