"""What a handler returns to the streaming runtime: the head of an HTTP response, and a body still being produced."""

import os
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

# Lambda frames the body itself. A length would be wrong for the newline that replaces an empty body.
_FRAMING = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})


class ResponseHead(TypedDict):
    """The prelude of an http-integration-response."""

    statusCode: int
    headers: dict[str, str]
    cookies: list[str]


class BodyWriter(Protocol):
    """The sink of a body. After its reader has left it discards everything and does not fail."""

    async def write(self, data: bytes) -> None:
        """Send data, which is not empty. Waits while the reader is slow (backpressure)."""

    def end(self) -> None:
        """Complete the body."""


@dataclass(frozen=True, slots=True)
class StreamingResult:
    """A response whose head is known. `stream` writes the body and returns when all work for it is done."""

    head: ResponseHead
    stream: Callable[[BodyWriter], Awaitable[None]]


def cannot_stream() -> bool:
    """Whether the process runs under `sam local`, whose emulator takes only buffered responses."""
    return "AWS_SAM_LOCAL" in os.environ


def response_head(response: Mapping[str, Any]) -> ResponseHead:
    """Return the head of a payload 2.0 response."""
    headers: dict[str, str] = response.get("headers") or {}
    return {
        "statusCode": response["statusCode"],
        "headers": {name: value for name, value in headers.items() if name.lower() not in _FRAMING},
        "cookies": response.get("cookies") or [],
    }


def as_stream(response: Mapping[str, Any]) -> StreamingResult:
    """Return a payload 2.0 response as a stream of one chunk."""
    text: str = response.get("body") or ""
    body = b64decode(text) if response.get("isBase64Encoded") else text.encode()

    async def stream(writer: BodyWriter) -> None:
        if body:
            await writer.write(body)
        writer.end()

    return StreamingResult(response_head(response), stream)
