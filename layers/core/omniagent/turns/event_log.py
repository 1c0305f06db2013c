"""The frames of one turn, kept in order for any number of readers."""

import asyncio
from collections.abc import AsyncIterator

from omniagent.protocol import sse
from omniagent.protocol.events import StreamEvent

KEEP_ALIVE_SECONDS = 15.0


class EventLog:
    """Each event is encoded once, when it is pushed. Readers start at the first frame and go at their own pace."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed = False
        self._held_at: int | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def push(self, event: StreamEvent) -> None:
        self.frames.append(sse.encode(event))
        if self._waiting:
            self._wake()

    def hold(self) -> None:
        """Keep what is pushed from now on from the readers until `close`."""
        if self._held_at is None:
            self._held_at = len(self.frames)

    def end(self) -> None:
        """Add the mark that ends the stream. Nothing may be pushed after it."""
        if not self.frames or self.frames[-1] is not sse.DONE:
            self.frames.append(sse.DONE)

    def close(self) -> None:
        """Let the readers see the end."""
        self._held_at = None
        self.closed = True
        self._wake()

    async def read_frames(self) -> AsyncIterator[bytes]:
        """Yield the stream's bytes from its start; frames that are ready together come as one piece."""
        position = 0
        while True:
            if ready := self.frames[position : self._held_at]:
                position += len(ready)
                yield ready[0] if len(ready) == 1 else b"".join(ready)
            elif self.closed:
                return
            elif not await self._changed():
                yield sse.KEEP_ALIVE

    async def _changed(self) -> bool:
        """Wait for something new; False when only time has passed. A timer per wait is cheaper than `wait_for`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        timer = loop.call_later(KEEP_ALIVE_SECONDS, _resolve, future)
        before = len(self.frames)
        try:
            await future
        finally:
            timer.cancel()
            if future in self._waiting:
                self._waiting.remove(future)
        return self.closed or len(self.frames) > before

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _resolve(future)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
