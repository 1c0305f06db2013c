"""`LiveJournal`: the lines of one running turn, for its readers in this process and for the registry."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from omniagent.protocol import sse
from omniagent.protocol.events import FinishStep, ResetStep, Start, StartStep, SteeringData, StreamEvent
from omniagent.turns.journal.records import Record, StepWithdrawn, is_shown, record_line, surviving, unread
from omniagent.turns.registry import MAX_CHUNK_BYTES

KEEP_ALIVE_SECONDS = 15.0
_SHOWS_NOTHING = (Start, StartStep, FinishStep, SteeringData)


class LiveJournal:
    """Each event is encoded once, when it is pushed. Readers start at the first line and read at their own pace."""

    def __init__(self, lines: Iterable[bytes] = ()) -> None:
        self.lines: list[bytes] = list(lines)
        self.closed = False
        self._held_at: int | None = None
        self._last_record = len(self.lines) - 1
        self._last_withdrawal = -1
        self._waiting: list[asyncio.Future[None]] = []
        self._on_shown: Callable[[], None] | None = None

    def push(self, event: StreamEvent) -> None:
        self.lines.append(sse.line(event))
        if self._waiting:
            self._wake()
        if self._on_shown is not None and not isinstance(event, _SHOWS_NOTHING):
            on_shown, self._on_shown = self._on_shown, None
            on_shown()

    def when_shown(self, on_shown: Callable[[], None]) -> None:
        """Call back once, at the next event that shows a part of the answer."""
        self._on_shown = on_shown

    def note(self, record: Record) -> None:
        """Add a record that clients do not see. One that cannot be written is dropped: only a successor reads it."""
        try:
            line = record_line(record)
        except (TypeError, ValueError):
            return
        if len(line) <= MAX_CHUNK_BYTES:
            self._last_record = len(self.lines)
            if isinstance(record, StepWithdrawn):
                self._last_withdrawal = len(self.lines)
            self.lines.append(line)

    def hold(self) -> None:
        """Hide what is pushed from now on from readers until `close`."""
        if self._held_at is None:
            self._held_at = len(self.lines)

    def end(self) -> None:
        """Add the mark that ends the stream. Nothing may be pushed after it."""
        if not self.lines or self.lines[-1] is not sse.DONE_LINE:
            self.lines.append(sse.DONE_LINE)

    def close(self) -> None:
        """Let the readers see the end."""
        self._held_at = None
        self.closed = True
        self._wake()

    async def read_frames(self) -> AsyncIterator[bytes]:
        """Yield the stream's bytes from its start. Lines that are ready together are yielded as one piece."""
        position = 0
        while True:
            if ready := self.lines[position : self._held_at]:
                start, position = position, position + len(ready)
                if start <= self._last_record:
                    reset = b""
                    if start <= self._last_withdrawal < position:
                        ready, reset = self._without_withdrawn(start, position)
                    if frames := reset + sse.frames_of([line for line in ready if is_shown(line)]):
                        yield frames
                else:
                    yield sse.frames_of(ready)
            elif self.closed:
                return
            elif not await self._changed():
                yield sse.KEEP_ALIVE

    def _without_withdrawn(self, start: int, end: int) -> tuple[list[bytes], bytes]:
        """Return what a reader that was sent the lines before `start` is sent of those before `end`."""
        rest, withdrawn = unread(surviving(self.lines[:start]), surviving(self.lines[:end]))
        return rest, sse.encode(ResetStep()) if withdrawn else b""

    async def _changed(self) -> bool:
        """Wait for a new line. False on timeout. A timer per wait is cheaper than `wait_for`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        timer = loop.call_later(KEEP_ALIVE_SECONDS, _resolve, future)
        before = len(self.lines)
        try:
            await future
        finally:
            timer.cancel()
            if future in self._waiting:
                self._waiting.remove(future)
        return self.closed or len(self.lines) > before

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _resolve(future)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
