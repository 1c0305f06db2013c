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
    HandedOver,
    RunStarted,
    StepEnded,
    StepWithdrawn,
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


_UNREADABLE = (AnswerTooLong, KeyError, RecursionError, ValueError, TypeError)
"""What a corrupt journal raises. It must not block the session."""


def fold(chunks: Sequence[Chunk], base: Sequence[Part] = (), *, takes_over: bool = True) -> Draft:
    """Fold a journal. `base` are the parts of an answer that waited, as its continuation began with them.

    With `takes_over`, the unfinished step is withdrawn as by a process that goes on with the turn. Reading stops at the
    first record that cannot be read.
    """
    written = lines_of(chunks)
    draft = Draft(AnswerRecorder(), lines=surviving(written, is_taken_over=takes_over), next_chunk=len(chunks))
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
    for entry in entries_of(written):
        match entry:
            case RunStarted():
                draft.is_handed_over = draft.has_open_calls = False
                draft.begun_at = entry.at if draft.begun_at is None else draft.begun_at
            case HandedOver():
                draft.hand_overs += entry.has_moved
                draft.is_handed_over, draft.has_open_calls = True, entry.has_open_calls
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
