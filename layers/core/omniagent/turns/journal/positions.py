"""Streams that begin after events which their reader has seen: `startIndex` of a client, `Last-Event-ID` of a browser.

An event's position is its place among the events of one journal. That holds as long as nothing was withdrawn: another
process, or another model call, shows other events in the place of those that were.
"""

from collections.abc import Sequence

from omniagent.protocol import sse
from omniagent.protocol.events import Error
from omniagent.turns.journal.records import is_shown, lines_of, surviving, withdraws
from omniagent.turns.registry import Chunk

LOST = sse.encode(Error("The answer has changed since the connection was lost. Reload the chat.")) + sse.DONE
"""Ends a stream whose position is not known any more."""


class RestOfLog:
    """Decides what a reader that has seen the first events of a journal is sent."""

    def __init__(self, seen: int) -> None:
        self.lines: list[bytes] = []
        self.has_ended = False
        self.unmatched = seen
        """How many of the events that were seen have not been found in the journal yet."""

    def take(self, chunks: Sequence[Chunk]) -> bytes:
        """Take the next chunks and return the bytes to send."""
        lines = lines_of(chunks)
        self.lines += lines
        self.has_ended = bool(lines) and lines[-1] == sse.DONE_LINE
        if any(map(withdraws, lines)) and (self.unmatched or len(surviving(self.lines)) < len(self.lines)):
            self.has_ended = True
            return LOST
        shown = [line for line in lines if is_shown(line) and line != sse.DONE_LINE]
        rest, self.unmatched = shown[self.unmatched :], max(0, self.unmatched - len(shown))
        return sse.frames_of([*rest, sse.DONE_LINE] if self.has_ended else rest)


def count_events(chunks: Sequence[Chunk]) -> int:
    """Return how many events of a journal its readers have seen."""
    return sum(is_shown(line) and line != sse.DONE_LINE for line in lines_of(chunks))
