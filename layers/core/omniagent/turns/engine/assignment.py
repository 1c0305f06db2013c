"""`Assignment`: what one run of a turn starts from."""

from collections.abc import Sequence
from dataclasses import dataclass

from omniagent.messages import Part
from omniagent.session.live import SessionHead, SessionMessage, SessionState
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.journal.fold import Draft


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one run of a turn is given."""

    head: SessionHead
    """The session after the change that gave this run the turn."""
    state: SessionState
    """The history that the model is shown."""
    limit: TimeLimit
    question: SessionMessage | None
    """The message that is answered. None: it was deleted while the turn waited."""
    previous: SessionMessage | None = None
    """The existing answer, if a message is answered again."""
    kept: Sequence[Part] = ()
    """The steps of `previous` whose tools may have taken effect. The turn continues after them and repeats none."""
    base: SessionMessage | None = None
    """The answer of a turn that waited, as it goes on."""
    draft: Draft | None = None
    """What the journal of a turn that is taken over has."""

    @property
    def text(self) -> str:
        return self.question.text if self.question is not None else ""
