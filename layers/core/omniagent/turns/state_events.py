"""The events that change a session: what each one brings. The table of `state.py` says when they fit."""

from datetime import datetime

from omniagent.protocol.events import Value
from omniagent.session.live import LiveTurn, Place, QueuedMessage, SessionMessage


class Event(Value):
    """What changes a session."""


class Begin(Event):
    """A message gets the turn."""

    turn: LiveTurn
    closes: SessionMessage | None = None
    """The waiting answer that ends with it."""


class Enqueue(Event):
    message: QueuedMessage


class Join(Event):
    run: str
    messages: tuple[QueuedMessage, ...]


class TakeOver(Event):
    run: str


class Withdraw(Event):
    run: str
    back: QueuedMessage | None = None
    """The message goes back to the front of the line."""
    changed_at: datetime | None = None
    """When the session's last turn before it began or ended."""


class _Answered(Event):
    run: str
    answer: SessionMessage


class Wait(_Answered):
    """The answer so far waits."""


class End(_Answered):
    """The answer has ended."""


class Reply(_Answered):
    """The replies are in `answer`. `run` continues the turn."""


class PartReply(Event):
    answer: SessionMessage


class Close(Event):
    answer: SessionMessage
    message: QueuedMessage | None = None
    """The message that is sent in place of the replies, if others are in line before it."""


class StopQueued(Event):
    message_id: str | None
    """None: all."""


class Switch(Event):
    leaf: Place


class Erase(Event):
    pass
