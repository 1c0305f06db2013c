"""A turn as an HTTP response: its frames, and then whatever must still happen before the invocation ends."""

from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omniagent.protocol import sse


class EventStream(Response):
    """Sends frames as they come. The first one is awaited before the status: what fails earlier is a problem.

    `finish` runs after the body has ended, so the client does not wait for it and the invocation does.
    """

    def __init__(
        self, frames: AsyncIterator[bytes], *, session_id: str, finish: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        super().__init__(headers={**sse.HEADERS, "x-session-id": session_id})
        del self.headers["content-length"]
        self._frames = frames
        self._finish = finish

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        try:
            first = await anext(self._frames, b"")
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for frame in self._frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if self._finish is not None:
                await self._finish()
