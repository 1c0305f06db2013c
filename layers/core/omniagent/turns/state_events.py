"""The events that change a session: what each one brings. The table of `state.py` says when they fit."""

from dataclasses import dataclass
from datetime import datetime

from omniagent.session.live import LiveTurn, Place, QueuedMessage, SessionMessage


@dataclass(frozen=True, slots=True)
class Begin:
    """A message gets the turn."""

    turn: LiveTurn
    closes: SessionMessage | None = None
    """The waiting answer that ends with it."""


@dataclass(frozen=True, slots=True)
class Enqueue:
    message: QueuedMessage


@dataclass(frozen=True, slots=True)
class Join:
    run: str
    messages: tuple[QueuedMessage, ...]


@dataclass(frozen=True, slots=True)
class TakeOver:
    run: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    run: str
    back: QueuedMessage | None = None
    """The message goes back to the front of the line."""
    changed_at: datetime | None = None
    """When the session's last turn before it began or ended."""


@dataclass(frozen=True, slots=True)
class _Answered:
    run: str
    answer: SessionMessage


class Wait(_Answered):
    """The answer so far waits."""


class End(_Answered):
    """The answer has ended."""


class Reply(_Answered):
    """The replies are in `answer`. `run` continues the turn."""


@dataclass(frozen=True, slots=True)
class PartReply:
    answer: SessionMessage


@dataclass(frozen=True, slots=True)
class Close:
    answer: SessionMessage
    message: QueuedMessage | None = None
    """The message that is sent in place of the replies, if others are in line before it."""


@dataclass(frozen=True, slots=True)
class StopQueued:
    message_id: str | None
    """None: all."""


@dataclass(frozen=True, slots=True)
class Switch:
    leaf: Place


@dataclass(frozen=True, slots=True)
class Erase:
    pass


Event = (
    Begin | Enqueue | Join | TakeOver | Withdraw | Wait | Reply | PartReply | End | Close | StopQueued | Switch | Erase
)
