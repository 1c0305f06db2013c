"""An answer as an HTTP response."""

from collections.abc import AsyncIterator
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omniagent.protocol import sse


class Answer(Protocol):
    """The part of `AnswerStream` that a response needs."""

    @property
    def session_id(self) -> str: ...

    def sse(self) -> AsyncIterator[bytes]:
        """The frames, from the first event to `[DONE]`."""

    async def ended(self) -> None:
        """Wait until nothing more is done for this answer in this process."""


class EventStream(Response):
    """Sends the frames of an answer as they come.

    The first frame is awaited before the status line: whatever fails earlier is a problem response. After the last
    one the invocation stays open until the turn has ended, but the client does not wait for that.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(headers={**sse.HEADERS, "cache-control": "no-store", "x-session-id": answer.session_id})
        del self.headers["content-length"]
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        frames = self._answer.sse()
        try:
            first = await anext(frames, b"")
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._answer.ended()
