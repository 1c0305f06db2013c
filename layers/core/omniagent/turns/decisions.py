"""What a request does, as `state.decide` decides it. The engine carries it out."""

from dataclasses import dataclass

from omniagent.errors import OmniAgentError
from omniagent.session.live import QueuedMessage, SessionMessage


@dataclass(frozen=True, slots=True)
class Run:
    """Begin a turn for this message."""

    message: SessionMessage
    """New, or the stored one that is answered again."""
    is_new: bool = True
    previous: SessionMessage | None = None
    """The answer that it is an alternative to."""
    regenerates: bool = False
    closes: SessionMessage | None = None
    """A waiting answer that ends with it."""


@dataclass(frozen=True, slots=True)
class Follow:
    """Read the turn that answers this message."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Return a stored answer."""

    answer: SessionMessage


@dataclass(frozen=True, slots=True)
class GetInLine:
    """Get in line. Steering and interrupting messages also send the running turn a signal."""

    message: QueuedMessage
    closes: SessionMessage | None = None


@dataclass(frozen=True, slots=True)
class WaitInLine:
    """The message is in line already."""

    message: QueuedMessage


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Stop the running turn, then decide again."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """The process of the running turn died: take the turn over and read it."""

    is_own: bool = True
    """Whether it answers what the request asks for. If not, it is finished first."""


@dataclass(frozen=True, slots=True)
class Refuse:
    error: OmniAgentError


Decision = Run | Follow | Replay | GetInLine | WaitInLine | Interrupt | GoOn | Refuse
