"""The shapes of a session's state: what a turn starts from, how it ends, and what a summary is. One of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from omniagent.messages import ChatMessage, Part, Role, Status, Usage, has_content
from omniagent.session.window import PastTurn, estimate_answer, estimate_parts


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """One message of a session: the user's, or the answer of a turn.

    `id` is the id that the client knows: its own for a user's message, the turn's id for an answer.
    """

    id: str
    role: Role
    turn_number: int
    parts: Sequence[Part]
    status: Status = "complete"
    usage: Usage = Usage()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return ChatMessage(role=self.role, parts=list(self.parts)).text

    def replaces(self, previous: "SessionMessage | None") -> bool:
        """Whether this answer takes the place of the one its turn already has: only if it shows anything."""
        return previous is None or has_content(self.parts)


@dataclass(frozen=True, slots=True)
class RollingSummary:
    """What happened in the turns `start_turn_number` to `end_turn_number`, and in all before."""

    content: str
    token_count: int
    start_turn_number: int
    end_turn_number: int


@dataclass(frozen=True, slots=True)
class SessionHead:
    """The session itself, without its messages. `active_turn_id` fences what the running turn may write."""

    latest_turn_number: int = 0
    active_turn_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class SessionState:
    """What a turn starts from. Bounded by the window, never by the length of the history."""

    head: SessionHead = SessionHead()
    summary: RollingSummary | None = None
    turns: Sequence[PastTurn] = ()
    """The newest turns in order, one more than the model may be shown: the last one may be answered again."""
    earlier: SessionMessage | None = None
    """The message that already has the id of the new one."""
    question: SessionMessage | None = None
    """The user's message of the latest turn."""
    answer: SessionMessage | None = None
    """The answer of the latest turn."""

    @property
    def summarized_to(self) -> int:
        return self.summary.end_turn_number if self.summary else 0

    def before(self, turn_number: int) -> Sequence[PastTurn]:
        return [turn for turn in self.turns if turn.number < turn_number]


@dataclass(frozen=True, slots=True)
class TurnStart:
    """A turn that is about to run, and the message that it answers."""

    turn_id: str
    turn_number: int
    message_id: str
    parts: Sequence[Part]
    again: bool = False
    """The turn exists already and is answered once more; its message is stored."""


def turns_of(messages: Sequence[SessionMessage]) -> list[PastTurn]:
    """Group messages, in order, into turns."""
    grouped = ((number, list(group)) for number, group in groupby(messages, key=lambda message: message.turn_number))
    return [
        PastTurn(
            number=number,
            messages=tuple(ChatMessage(role=message.role, parts=list(message.parts)) for message in group),
            tokens=sum(_tokens(message) for message in group),
        )
        for number, group in grouped
    ]


def _tokens(message: SessionMessage) -> int:
    if message.role == "user":
        return estimate_parts(message.parts)
    return estimate_answer(message.parts, message.usage.output_tokens)
