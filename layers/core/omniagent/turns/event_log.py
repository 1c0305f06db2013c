"""`EventLog`: the frames of one answer, for its readers in this process and for the chunk log."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from omniagent.protocol import sse
from omniagent.protocol.events import FinishStep, Start, StartStep, SteeringData, StreamEvent

KEEP_ALIVE_SECONDS = 15.0
_SHOWS_NOTHING = (Start, StartStep, FinishStep, SteeringData)


class EventLog:
    """Each event is encoded once, when it is pushed. Readers start at the first frame and read at their own pace."""

    def __init__(self, frames: Iterable[bytes] = ()) -> None:
        self.frames: list[bytes] = list(frames)
        self.closed = False
        self._held_at: int | None = None
        self._last_note = len(self.frames) - 1
        self._start: list[bytes] | None = None
        self._known_to = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._on_shown: Callable[[], None] | None = None

    def push(self, event: StreamEvent) -> None:
        frame = sse.encode(event)
        if self._start is not None:
            if isinstance(event, _SHOWS_NOTHING):
                self._start.append(frame)
                return
            self.frames += self._start
            self._start = None
        self.frames.append(frame)
        if self._waiting:
            self._wake()
        if self._on_shown is not None and not isinstance(event, _SHOWS_NOTHING):
            on_shown, self._on_shown = self._on_shown, None
            on_shown()

    def when_shown(self, on_shown: Callable[[], None]) -> None:
        """Call back once, at the next event that shows a part of the answer."""
        self._on_shown = on_shown

    def note(self, frame: bytes) -> None:
        """Add a note to the chunk log. Readers of the stream do not see it."""
        self._last_note = len(self.frames)
        self.frames.append(frame)

    def mark_continued(self, mark: bytes) -> None:
        """Mark the end of what was shown before the turn waited.

        Local readers have seen it already; followers replay it from the first frame.
        """
        self.frames.append(mark)
        self._known_to = len(self.frames)

    def withhold_start(self) -> None:
        """Withhold the start of the answer until some of it is shown: it may leave a previous answer in place.

        Readers get a comment meanwhile, so that the status line is not delayed.
        """
        self.frames.append(sse.KEEP_ALIVE)
        self._start = []

    def drop_start(self) -> None:
        """Drop the withheld start: none of this answer will be shown."""
        self._start = None

    def hold(self) -> None:
        """Hide what is pushed from now on from readers until `close`."""
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
        """Yield the stream's bytes from its start. Frames that are ready together are yielded as one piece."""
        position = 0
        if self._known_to:
            yield next(frame for frame in self.frames if frame.startswith(b"data: "))  # the start
            position = self._known_to
        while True:
            if ready := self.frames[position : self._held_at]:
                has_notes = position <= self._last_note
                position += len(ready)
                frames = ready[0] if len(ready) == 1 else b"".join(ready)
                if not has_notes or (frames := sse.without_notes(frames)):
                    yield frames
            elif self.closed:
                return
            elif not await self._changed():
                yield sse.KEEP_ALIVE

    async def _changed(self) -> bool:
        """Wait for a new frame. False on timeout. A timer per wait is cheaper than `wait_for`."""
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
