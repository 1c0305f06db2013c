"""`AnswerStream`: what `Runner.run_stream` returns, whoever answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

from omniagent.ai.result import AnswerSource, RunResult
from omniagent.protocol import sse
from omniagent.protocol.events import StreamEvent


class AnswerStream:
    """An answer as it is made: `async for event in stream`, `stream.sse()` for bytes, `await stream.result()`.

    The turn starts with the first of these, or with `await stream`; every refusal is raised there, before the first
    event. A reader that stops reading does not stop the turn: `Runner.stop()` does.
    """

    def __init__(self, session_id: str, opening: Callable[[], Awaitable[AnswerSource]]) -> None:
        self.session_id = session_id
        self._opening = opening
        self._source: AnswerSource | None = None
        self._lock = asyncio.Lock()

    @property
    def message_id(self) -> str:
        """The id of the answer's message. Known once the stream has started."""
        if self._source is None:
            raise RuntimeError("the stream has not started: `await` it first")
        return self._source.message_id

    def __await__(self) -> Generator[Any, None, "AnswerStream"]:
        return self._started().__await__()

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self._events()

    async def sse(self) -> AsyncIterator[bytes]:
        """The stream as server-sent events: `data: {json}` per event, keep-alive comments, `data: [DONE]`."""
        async for frames in (await self._opened()).frames():
            yield frames

    async def result(self) -> RunResult:
        """Wait for the end and return what was stored. Cancelling the waiter does not cancel the turn."""
        return await (await self._opened()).result()

    async def ended(self) -> None:
        """Wait until nothing more is done for this answer here: callbacks, a summary beside it, the release."""
        await (await self._opened()).ended()

    async def _events(self) -> AsyncIterator[StreamEvent]:
        async for frames in (await self._opened()).frames():
            for event in sse.decode_events(frames):
                yield event

    async def _started(self) -> "AnswerStream":
        await self._opened()
        return self

    async def _opened(self) -> AnswerSource:
        async with self._lock:
            if self._source is None:
                self._source = await self._opening()
            return self._source
