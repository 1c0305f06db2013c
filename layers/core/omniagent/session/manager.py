"""`SessionManager`: the state machine of one session, whatever it is stored in."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omniagent.messages import ChatMessage, Part, Role, Status, Usage
from omniagent.session import context
from omniagent.session.identity import check_id, new_id, session_key, user_id_of
from omniagent.settings import Settings


@dataclass(frozen=True, slots=True)
class SummaryState:
    """The latest summary."""

    id: str
    content: str
    end_turn_number: int


@dataclass(frozen=True, slots=True)
class NewSummary:
    """A summary to store. It starts right after the previous one ends."""

    content: str
    token_count: int
    start_turn_number: int
    end_turn_number: int


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it was stored."""

    id: str
    role: Role
    turn_number: int
    parts: Sequence[Part]
    status: Status
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SessionState:
    """What is known of a session before a turn. All of it is bounded by the window, never by the history."""

    latest_turn_number: int = 0
    active_turn_id: str | None = None
    name: str | None = None
    summary: SummaryState | None = None
    turns: Sequence[context.Turn] = ()
    earlier: StoredMessage | None = None
    """The message that already has the id of the new one."""

    @property
    def summarized_to(self) -> int:
        return self.summary.end_turn_number if self.summary else 0

    def before(self, turn_number: int) -> Sequence[context.Turn]:
        return [turn for turn in self.turns if turn.number < turn_number]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """How a turn ended."""

    turn_id: str
    turn_number: int
    parts: Sequence[Part]
    status: Status
    usage: Usage = Usage()
    metadata: dict[str, Any] = field(default_factory=dict)
    previous_summary_id: str | None = None
    summary: NewSummary | None = None
    keep_previous: bool = False


class SessionManager(ABC):
    """One session of one user. Subclasses read and write; what to show and when to summarize is decided here."""

    def __init__(
        self, user: str, session_id: str | None = None, *, settings: Settings | None = None, category: str | None = None
    ) -> None:
        self.user = user
        self.category = category
        self.session_id = check_id(session_id, "session id") if session_id else new_id()
        self.settings = settings or Settings()
        self.user_id = user_id_of(user)
        self.key = session_key(self.user_id, self.session_id)

    @abstractmethod
    async def load(self, message_id: str | None = None) -> SessionState:
        """Read the session's state, and the message that already has this id."""

    @abstractmethod
    async def answer(self, turn_number: int) -> StoredMessage | None:
        """Read the stored answer of a turn."""

    @abstractmethod
    async def begin_turn(
        self,
        *,
        turn_id: str,
        turn_number: int,
        message_id: str,
        parts: Sequence[Part],
        running_at_most: int | None = None,
    ) -> None:
        """Make the user's message durable and take the session for this turn.

        Raises `TooManyTurns` when the user has so many turns already, also when they all begin at the same moment.
        """

    @abstractmethod
    async def restart_turn(self, *, turn_id: str, turn_number: int, running_at_most: int | None = None) -> None:
        """Take the session for answering its last turn once more, within the same limit."""

    @abstractmethod
    async def finish_turn(self, record: TurnRecord) -> None:
        """Write the answer in one transaction. Raises `TurnLost` when the turn was taken over."""

    @abstractmethod
    async def repair_turn(self, turn_id: str, parts: Sequence[Part]) -> bool:
        """Close a turn whose process died, with what its stream had shown."""

    @abstractmethod
    async def running_turns(self) -> Sequence[str]:
        """Return the keys of the user's sessions that have a turn, alive or dead; not more than may be running."""

    def visible_messages(self, state: SessionState, turn_number: int) -> list[ChatMessage]:
        """Return what the model is shown of the turns before this one."""
        limits = context.Limits(self.settings.context_max_turns, self.settings.context_max_tokens)
        chosen = context.window(state.before(turn_number), summarized_to=state.summarized_to, limits=limits)
        return context.messages_of(chosen)

    def turns_to_summarize(self, state: SessionState, turn_number: int) -> Sequence[context.Turn]:
        """Return the turns that a new summary must cover, up to the previous one; none when it is not due.

        Also none when the window does not reach back to the last summary: then only a regeneration can close the gap.
        """
        limits = context.Limits(self.settings.summary_after_turns, self.settings.summary_after_tokens)
        before = state.before(turn_number)
        if not context.summary_is_due(before, summarized_to=state.summarized_to, limits=limits):
            return ()
        since = [turn for turn in before if turn.number > state.summarized_to]
        return since if since[0].number == state.summarized_to + 1 else ()

    def summary_has_gap(self, state: SessionState) -> bool:
        """Whether turns have left the window without being summarized."""
        return bool(state.turns) and state.turns[0].number > state.summarized_to + 1
