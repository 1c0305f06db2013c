"""What a journal says: to those who read its stream, and to those who close its turn or go on with it."""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from omniagent.errors import AnswerTooLong
from omniagent.messages import Part, Usage
from omniagent.protocol import sse
from omniagent.protocol.events import Error, ResetStep, Start, StartStep
from omniagent.turns.journal.recorder import AnswerRecorder
from omniagent.turns.journal.records import (
    ApprovedStarted,
    Counted,
    HandedOver,
    RunStarted,
    StepEnded,
    StepWithdrawn,
    entries_of,
)
from omniagent.turns.registry import Chunk

LOST: Final = sse.encode(Error("The answer has changed since the connection was lost. Reload the chat.")) + sse.DONE
"""Ends a stream whose position is not known any more."""
START_STEP: Final = sse.line(StartStep())
_PREFIX: Final = b'{"record":'
_RUN, _STEP, _WITHDRAWN, _HANDED_OVER = (
    f'{{"record":"{each.kind}"'.encode() for each in (RunStarted, StepEnded, StepWithdrawn, HandedOver)
)
_ENDINGS = (
    *(f'{{"type":"{kind}"'.encode() for kind in ("abort", "error", "finish", "data-session")),
    sse.DONE_LINE,
)
_UNREADABLE = (AnswerTooLong, KeyError, RecursionError, ValueError, TypeError)
"""What a corrupt journal raises. It must not block the session."""


def is_shown(line: bytes) -> bool:
    """Whether clients see this line."""
    return not line.startswith(_PREFIX)


def is_start(line: bytes) -> bool:
    return line.startswith(b'{"type":"start",')


def is_takeover(line: bytes) -> bool:
    """Whether another process than the first begins here."""
    return line.startswith(_RUN) and b'"attempt":0,' not in line


def withdraws(lines: Iterable[bytes]) -> bool:
    """Whether what the unfinished step has shown is withdrawn by one of these lines."""
    return any(line.startswith(_PREFIX) and (line.startswith(_WITHDRAWN) or is_takeover(line)) for line in lines)


def is_handed_over(lines: bytes) -> bool:
    """Whether a chunk ends with a hand-over."""
    return lines.rpartition(b"\n")[2].startswith(_HANDED_OVER)


def lines_of(chunks: Iterable[Chunk]) -> list[bytes]:
    """Return the lines of these chunks."""
    return [line for chunk in chunks for line in chunk.lines.split(b"\n") if line]


def count_events(lines: Sequence[bytes]) -> int:
    """Return how many events of a journal its readers have seen."""
    return sum(is_shown(line) and line != sse.DONE_LINE for line in lines)


def surviving(lines: Sequence[bytes]) -> list[bytes]:
    """Return a journal without what was withdrawn: the unfinished step of a process that died, the end of a stream
    whose answer could not be stored, and what a step had shown before its call was repeated.
    """
    kept: list[bytes] = []
    open_at: int | None = None
    for line in lines:
        if line == START_STEP and open_at is None:
            open_at = len(kept)
        elif line.startswith(_STEP):
            open_at = None
        elif is_takeover(line):
            kept = [each for each in kept[:open_at] if not each.startswith(_ENDINGS)]
            open_at = None
        elif line.startswith(_WITHDRAWN) and open_at is not None:
            # Each record stays: a reader that has seen an attempt finds where the next one begins.
            kept[open_at + 1 :] = [each for each in kept[open_at + 1 :] if each.startswith(_WITHDRAWN)]
        kept.append(line)
    return kept


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
            pairs = enumerate(zip(self._lines, kept, strict=False))
            same = next((at for at, (sent, line) in pairs if sent != line), min(len(self._lines), len(kept)))
            withdrawn = [line for line in self._lines[same:] if is_shown(line)]
            self._lines, lines = kept[:same], kept[same:]
            # `reset-step` withdraws lines of one step, in a stream that has not ended.
            if withdrawn.count(START_STEP) > 1 or any(line.startswith(_ENDINGS) for line in withdrawn):
                self.has_ended = True
                return b""
            self._skips_step = self._skips_step or START_STEP in withdrawn
            reset = sse.encode(ResetStep()) if withdrawn else b""
        if self.holds_back and lines[-1:] != [sse.DONE_LINE]:
            last_end = max((at for at, line in enumerate(lines) if line.startswith(_STEP)), default=-1)
            unfinished = (at for at, line in enumerate(lines) if at > last_end and line == START_STEP)
            begun = next(unfinished, len(lines))
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


@dataclass(slots=True)
class Draft:
    """A turn as its journal shows it, for those who close it or go on with it. That of a new turn is empty."""

    recorder: AnswerRecorder = field(default_factory=AnswerRecorder)
    """The answer so far."""
    lines: list[bytes] = field(default_factory=list)
    """What is kept of the journal."""
    next_chunk: int = 0
    is_readable: bool = False
    """Whether the journal is complete and the turn can be continued."""
    steps: list[StepEnded] = field(default_factory=list)
    calls: list[Usage] = field(default_factory=list)
    """The cost of each model call that ended."""
    hand_overs: int = 0
    """How many processes ran out of time and handed the turn over, instead of dying."""
    handed_over: HandedOver | None = None
    """How the process before the last one left the turn. None: it died."""
    begun_at: float = 0.0
    """The wall clock at which the first process began that wrote anything."""
    has_started: bool = False
    """The stream has its start."""
    was_asked: bool = False
    """A step has begun, so `on_start` was already called."""
    has_approved: bool = False
    """The approved calls may have run."""
    rejected: StepWithdrawn | None = None
    """The answer that did not fit the agent's `output`, until another one is accepted."""


def fold(chunks: Sequence[Chunk], base: Sequence[Part] = ()) -> Draft:
    """Fold a journal. `base` are the parts of an answer that waited, as its continuation began with them.

    The first record of a process that takes over withdraws the unfinished step before it, which is generated again.
    Reading stops at the first record that cannot be read.
    """
    written = lines_of(chunks)
    draft = Draft(lines=surviving(written), next_chunk=len(chunks))
    draft.recorder.restore(base)
    with suppress(*_UNREADABLE):
        _note_withdrawn_too(draft, written)
    with suppress(*_UNREADABLE):
        for entry in entries_of(draft.lines):
            draft.recorder.apply(entry)
            draft.has_started = draft.has_started or isinstance(entry, Start)
            draft.has_approved = draft.has_approved or isinstance(entry, ApprovedStarted)
            draft.steps += [entry] if isinstance(entry, StepEnded) else []
        draft.is_readable = [chunk.number for chunk in chunks] == list(range(len(chunks)))
    return draft


def _note_withdrawn_too(draft: Draft, written: Sequence[bytes]) -> None:
    """Note what counts although it was withdrawn: calls are paid for, and dead processes counted."""
    hand_over = None
    for entry in entries_of(written):
        match entry:
            case RunStarted():
                draft.handed_over, hand_over = hand_over, None
                draft.begun_at = draft.begun_at or entry.at
            case HandedOver():
                draft.hand_overs += entry.has_moved
                hand_over = entry
            case StartStep():
                draft.was_asked = True
            case StepWithdrawn():
                draft.rejected = entry if entry.correction else draft.rejected
            case StepEnded() if not entry.calls:
                draft.rejected = None
            case Counted():
                draft.calls.append(Usage.from_dict(entry.usage))


def replayed(lines: Iterable[bytes], base: Sequence[Part] = ()) -> AnswerRecorder:
    """Return a recorder that has recorded these lines, to complete or to close the answer."""
    recorder = AnswerRecorder(max_chars=math.inf)
    recorder.restore(base)
    with suppress(*_UNREADABLE):
        for entry in entries_of(lines):
            recorder.apply(entry)
    return recorder
