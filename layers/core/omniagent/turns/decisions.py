"""What a request does, as `state.decide` decides it. The engine carries it out."""

from omniagent.errors import OmniAgentError
from omniagent.protocol.events import Value
from omniagent.session.live import QueuedMessage, SessionMessage


class Run(Value):
    """Begin a turn for this message."""

    message: SessionMessage
    """New, or the stored one that is answered again."""
    is_new: bool = True
    previous: SessionMessage | None = None
    """The answer that it is an alternative to."""
    regenerates: bool = False
    closes: SessionMessage | None = None
    """A waiting answer that ends with it."""


class Follow(Value):
    """Read the turn that answers this message."""


class Replay(Value):
    """Return a stored answer."""

    answer: SessionMessage


class GetInLine(Value):
    """Get in line. Steering and interrupting messages also send the running turn a signal."""

    message: QueuedMessage
    closes: SessionMessage | None = None


class WaitInLine(Value):
    """The message is in line already."""

    message: QueuedMessage


class Interrupt(Value):
    """Stop the running turn, then decide again."""


class GoOn(Value):
    """The process of the running turn died: take the turn over and read it."""

    is_own: bool = True
    """Whether it answers what the request asks for. If not, it is finished first."""


class Refuse(Value):
    error: OmniAgentError


Decision = Run | Follow | Replay | GetInLine | WaitInLine | Interrupt | GoOn | Refuse
