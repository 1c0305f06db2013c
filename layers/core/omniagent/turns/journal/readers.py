"""What the readers of a journal are sent: those that see it from its first event, and those that have seen some."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from omniagent.protocol import sse
from omniagent.protocol.events import Error, ResetStep
from omniagent.turns.journal.records import (
    START_STEP,
    is_shown,
    is_start,
    may_be_reset,
    open_step,
    surviving,
    unread,
    withdraws,
)

LOST = sse.encode(Error("The answer has changed since the connection was lost. Reload the chat.")) + sse.DONE
"""Ends a stream whose position is not known any more."""


@dataclass(slots=True, eq=False)
class JournalReader:
    """Decides what a reader of a journal is sent, in its process or in another.

    A follower in another process gets an unfinished step only once its process is known to be alive: until then, it is
    held back. If the process died, another one generates the step again, and a reader that has not seen it sees one
    undisturbed answer. A reader that has seen what is withdrawn gets `reset-step`. If that cannot withdraw it, its
    stream ends and it resumes.
    """

    holds_back: bool = False
    skips_start: bool = False
    has_ended: bool = False
    _lines: list[bytes] = field(default_factory=list)
    _held: list[bytes] = field(default_factory=list)
    _skips_step: bool = False
    """A reset keeps the step's start, so that of the process that takes over is not sent."""

    @property
    def lines(self) -> list[bytes]:
        """What the client has been sent and still displays, with the records between."""
        return [*self._lines, START_STEP] if self._skips_step else self._lines

    def take(self, lines: list[bytes]) -> bytes:
        """Take the next lines and return the bytes to send. None is a sign of life."""
        if self.skips_start:
            self.skips_start = not any(map(is_start, lines))
            lines = [line for line in lines if not is_start(line)]
        if self._held:
            lines, self._held = [*self._held, *lines], []
        reset = b""
        if withdraws(lines):
            kept = surviving([*self._lines, *lines])
            lines, withdrawn = unread(self._lines, kept)
            self._lines = kept[: len(kept) - len(lines)]
            if withdrawn and not may_be_reset(withdrawn):
                self.has_ended = True
                return b""
            self._skips_step = self._skips_step or START_STEP in withdrawn
            reset = sse.encode(ResetStep()) if withdrawn else b""
        if self.holds_back and lines[-1:] != [sse.DONE_LINE]:
            begun = open_step(lines)
            lines, self._held = lines[:begun], lines[begun:]
        self.holds_back = False
        self._lines += lines
        self.has_ended = bool(lines) and lines[-1] == sse.DONE_LINE
        shown = [line for line in lines if is_shown(line)]
        if self._skips_step and START_STEP in shown:
            shown.remove(START_STEP)
            self._skips_step = False
        return reset + sse.frames_of(shown)


@dataclass(slots=True, eq=False)
class RestOfJournal:
    """Decides what a reader that has seen the first events of a journal is sent: `startIndex` of a client,
    `Last-Event-ID` of a browser.

    An event's position is its place among the events of one journal. That holds as long as nothing was withdrawn:
    another process, or another model call, shows other events in the place of those that were.
    """

    unmatched: int
    """How many of the events that were seen have not been found in the journal yet."""
    lines: list[bytes] = field(default_factory=list)
    has_ended: bool = False

    def take(self, lines: list[bytes]) -> bytes:
        """Take the next lines and return the bytes to send."""
        self.lines += lines
        self.has_ended = lines[-1:] == [sse.DONE_LINE]
        if withdraws(lines) and (self.unmatched or len(surviving(self.lines)) < len(self.lines)):
            self.has_ended = True
            return LOST
        shown = [line for line in lines if is_shown(line) and line != sse.DONE_LINE]
        rest, self.unmatched = shown[self.unmatched :], max(0, self.unmatched - len(shown))
        return sse.frames_of([*rest, sse.DONE_LINE] if self.has_ended else rest)


def count_events(lines: Sequence[bytes]) -> int:
    """Return how many events of a journal its readers have seen."""
    return sum(is_shown(line) and line != sse.DONE_LINE for line in lines)
