"""`fold()`: what a journal says about its turn, for whoever follows, closes or takes it over."""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from omniagent.errors import AnswerTooLong
from omniagent.messages import Part, Usage
from omniagent.protocol.events import Start, StartStep
from omniagent.turns.journal.recorder import AnswerRecorder
from omniagent.turns.journal.records import (
    ApprovedStarted,
    Counted,
    Entry,
    HandedOver,
    RunStarted,
    StepEnded,
    StepWithdrawn,
    as_taken_over,
    entries_of,
    lines_of,
    surviving,
)
from omniagent.turns.registry import Chunk


@dataclass(slots=True)
class Draft:
    """A turn as its journal shows it, without the unfinished step, which is generated again."""

    recorder: AnswerRecorder
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
    """How many of them ran out of time and handed the turn over, instead of dying."""
    is_handed_over: bool = False
    """The last one did."""
    has_open_calls: bool = False
    """It handed over before it started the tools of its last step."""
    begun_at: float | None = None
    """The wall clock at which the first process began; None if it wrote nothing."""
    has_started: bool = False
    """The stream has its start."""
    was_asked: bool = False
    """A step has begun, so `on_start` was already called."""
    has_approved: bool = False
    """The approved calls may have run."""
    rejected: StepWithdrawn | None = None
    """The answer that did not fit the agent's `output`, until another one is accepted."""

    @property
    def first_token_at(self) -> float | None:
        """The wall clock at the first token."""
        return next((step.first_token_at for step in self.steps if step.first_token_at is not None), None)

    def note(self, entry: Entry) -> None:
        """Take up what a record says about the turn."""
        match entry:
            case RunStarted():
                self.is_handed_over = self.has_open_calls = False
                self.begun_at = entry.at if self.begun_at is None else self.begun_at
            case HandedOver():
                self.hand_overs += entry.has_moved
                self.is_handed_over, self.has_open_calls = True, entry.has_open_calls
            case Start():
                self.has_started = True
            case StartStep():
                self.was_asked = True
            case ApprovedStarted():
                self.has_approved = True
            case StepWithdrawn():
                self.rejected = entry if entry.correction else self.rejected
            case StepEnded():
                self.steps.append(entry)
            case Counted():
                self.calls.append(Usage.from_dict(entry.usage))


_UNREADABLE = (AnswerTooLong, KeyError, RecursionError, ValueError, TypeError)
"""What a corrupt journal raises. It must not block the session."""
_OF_ALL_RUNS = (Counted, RunStarted, HandedOver, StartStep, StepWithdrawn)
"""Records that count also where they were withdrawn."""


def fold(chunks: Sequence[Chunk], base: Sequence[Part] = (), *, takes_over: bool = True) -> Draft:
    """Fold a journal. `base` are the parts of an answer that waited, as its continuation began with them.

    With `takes_over`, the unfinished step is withdrawn as by a process that goes on with the turn. Reading stops at the
    first record that cannot be read.
    """
    written = lines_of(chunks)
    lines = as_taken_over(written) if takes_over else surviving(written)
    draft = Draft(AnswerRecorder(), lines=lines, next_chunk=len(chunks))
    draft.recorder.restore(base)
    with suppress(*_UNREADABLE):
        for entry in entries_of(written):  # withdrawn calls are paid for, and dead processes counted
            if isinstance(entry, _OF_ALL_RUNS):
                draft.note(entry)
            elif isinstance(entry, StepEnded) and not entry.calls:
                draft.rejected = None
    with suppress(*_UNREADABLE):
        for entry in entries_of(lines):
            draft.recorder.apply(entry)
            if not isinstance(entry, _OF_ALL_RUNS):
                draft.note(entry)
        draft.is_readable = [chunk.number for chunk in chunks] == list(range(len(chunks)))
    return draft


def replayed(lines: Iterable[bytes], base: Sequence[Part] = ()) -> AnswerRecorder:
    """Return a recorder that has recorded these lines, to complete or to close the answer."""
    recorder = AnswerRecorder(max_chars=math.inf)
    recorder.restore(base)
    with suppress(*_UNREADABLE):
        for entry in entries_of(lines):
            recorder.apply(entry)
    return recorder
