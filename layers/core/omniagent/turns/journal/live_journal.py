"""`LiveJournal`: the lines of one running turn, for its readers in this process and for the registry."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from omniagent.protocol import sse
from omniagent.protocol.events import ResetStep
from omniagent.turns.journal.records import Entry, Record, is_shown, record_line, surviving, unread, withdraws
from omniagent.turns.registry import MAX_CHUNK_BYTES

KEEP_ALIVE_SECONDS = 15.0


class LiveJournal:
    """Each event is encoded once, when it is added. Readers start at the first line and read at their own pace."""

    def __init__(self, lines: Iterable[bytes] = ()) -> None:
        self.lines: list[bytes] = list(lines)
        self._is_closed = False
        self._news = asyncio.Event()
        """Set and cleared at once, for those who wait."""

    def add(self, entry: Entry) -> None:
        """Add an event, or a record that clients do not see.

        A record that cannot be written is dropped: only a successor reads it.
        """
        if not isinstance(entry, Record):
            self.lines.append(sse.line(entry))
            self._news.set()
            self._news.clear()
            return
        with suppress(TypeError, ValueError):
            if len(line := record_line(entry)) <= MAX_CHUNK_BYTES:
                self.lines.append(line)

    def close(self, *, has_end: bool = False) -> None:
        """Let the readers end here. Without the end of the answer, they resume."""
        if not self._is_closed:
            self._is_closed = True
            self.lines += [sse.DONE_LINE] if has_end else []
            self._news.set()

    async def read_frames(self) -> AsyncIterator[bytes]:
        """Yield the stream's bytes from its start. Lines that are ready together are yielded as one piece."""
        position = 0
        while True:
            if ready := self.lines[position:]:
                reset = b""
                if any(map(withdraws, ready)):
                    before, now = self.lines[:position], self.lines
                    ready, withdrawn = unread(surviving(before), surviving(now))
                    reset = sse.encode(ResetStep()) if withdrawn else b""
                position = len(self.lines)
                if frames := reset + sse.frames_of([line for line in ready if is_shown(line)]):
                    yield frames
            elif self._is_closed:
                return
            else:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        await self._news.wait()
                except TimeoutError:
                    yield sse.KEEP_ALIVE
