"""`SessionManager`: one session of one user, whatever it is stored in, and the only types of a session's state."""

import asyncio
import hashlib
import re
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Protocol

from omniagent.errors import ConfigurationError, InvalidRequest
from omniagent.messages import ChatMessage, Feedback, Part, Role, Status, ToolPart, Usage, has_content, steering_of
from omniagent.session.summary_store import RollingSummary, SummaryStore
from omniagent.session.window import PastTurn, estimate_answer, estimate_parts
from omniagent.settings import Settings

ID_PATTERN = r"^[A-Za-z0-9_~-][A-Za-z0-9_.~-]{0,127}$"
"""No dot comes first: clients resolve `/sessions/..` before they send it, and could not reach that session again."""
_ID = re.compile(ID_PATTERN)
NOT_AN_ANSWER = "Only an answer can be rated."
NEVER = datetime(9999, 12, 31, tzinfo=UTC)


def new_id() -> str:
    return uuid.uuid4().hex


def check_id(value: str, what: str) -> str:
    """Return the id, or refuse one that is not a plain token."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidRequest(f"{what} must be 1 to 128 of the characters A-Z a-z 0-9 _ . ~ - and begin with no dot")
    return value


def slot_of(key: str, turn_id: str) -> str:
    """Name the slot that a turn takes of its user's."""
    return f"{key}#{turn_id}"


def session_of_slot(slot: str) -> str:
    """Return the key of the session whose turn holds a slot."""
    return slot.partition("#")[0]


def continuation_id(message_id: str) -> str:
    """Return the id of a run that goes on with an answer: a fencing token of its own, for the same message."""
    return f"{new_id()}.{message_id}"


def message_id_of(turn_id: str) -> str:
    """Return the id of the answer that a run writes: its own, unless it goes on with one."""
    return turn_id.rpartition(".")[2]


def user_id_of(client_id: str) -> str:
    return hashlib.blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def session_key(user_id: str, session_id: str) -> str:
    return f"{user_id}:{session_id}"


def public_session_id(key: str) -> str:
    """Return the id that the client knows a session by."""
    return key.partition(":")[2]


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """One message of a session: the user's, or the answer of a turn.

    `id` is the id that the client knows: its own for a user's message, the id of the turn's first run for an answer.
    """

    id: str
    role: Role
    turn_number: int
    parts: Sequence[Part]
    status: Status = "complete"
    usage: Usage = Usage()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    trace: str | None = field(default=None, compare=False)
    """The W3C `traceparent` of the turn's span: feedback joins its trace."""
    feedback: Feedback | None = None
    turn_id: str = field(default="", compare=False)
    """The fencing token of the run that wrote it, where that is not the message's id. Not stored."""

    @property
    def text(self) -> str:
        return ChatMessage(role=self.role, parts=list(self.parts)).text

    @property
    def fence(self) -> str:
        """What the session must hold as its active turn for this answer to be stored."""
        return self.turn_id or self.id

    @property
    def pending(self) -> list[ToolPart]:
        """The calls that wait for an answer. Empty unless the turn is waiting."""
        if self.status != "waiting":
            return []
        return [part for part in self.parts if isinstance(part, ToolPart) and part.is_pending]

    @property
    def waiting_until(self) -> datetime | None:
        """When the first of its requests expires; None if it waits for nothing."""
        return min((part.request.expires_at or NEVER for part in self.pending if part.request), default=None)

    @property
    def ui_metadata(self) -> dict[str, Any]:
        """The metadata of the message as clients see it, with the user's feedback."""
        if self.feedback is None:
            return dict(self.metadata)
        feedback = self.feedback.model_dump(include={"rating", "text"}, exclude_none=True)
        return {**self.metadata, "feedback": feedback}

    def replaces(self, previous: "SessionMessage | None") -> bool:
        """Whether this answer takes the place of the one its turn already has: only if it holds anything new."""
        if previous is None or has_content(self.parts):
            return True
        return any(message_id not in previous.steering_ids for message_id in self.steering_ids)

    @property
    def steering_ids(self) -> list[str]:
        """The ids of the user's messages that joined this answer."""
        return [part.message_id for part in steering_of(self.parts)]


@dataclass(frozen=True, slots=True)
class SessionHead:
    """The session itself, without its messages. `active_turn_id` fences what the running turn may write."""

    latest_turn_number: int = 0
    active_turn_id: str | None = None
    name: str | None = None
    changed_at: datetime | None = field(default=None, compare=False)
    """When the last turn began or ended."""
    latest_turn_id: str | None = field(default=None, compare=False)
    """The run that wrote last: begun, finished or closed. Only whoever saw it may answer what a turn waits for."""
    waiting_until: datetime | None = None
    """When the latest turn, which is waiting, expires; None if it does not wait."""
    attempt: int = field(default=0, compare=False)
    """The latest of the processes that have worked on the active turn."""

    @property
    def waiting_id(self) -> str | None:
        """The answer that the last run wrote, if the session waits for somebody; None if it does not."""
        if self.active_turn_id is not None or self.waiting_until is None:
            return None
        return message_id_of(self.latest_turn_id or "")

    def has_expired(self, now: datetime) -> bool:
        """Whether the turn waits for something that nobody answered in time."""
        return self.active_turn_id is None and self.waiting_until is not None and self.waiting_until <= now

    def has_begun(self, turn_id: str, attempt: int) -> bool:
        """Whether this turn is the latest, and this process, or a later one, has begun to work on it."""
        return self.latest_turn_id == turn_id and (self.active_turn_id is None or self.attempt >= attempt)

    def has_ended(self, turn_id: str) -> bool:
        """Whether this turn is the latest, and over."""
        return self.active_turn_id is None and self.latest_turn_id == turn_id

    def ended_within(self, seconds: float) -> bool:
        """Whether the last turn ended less than so many seconds ago, and none has begun since."""
        if self.active_turn_id is not None or self.changed_at is None:
            return False
        return datetime.now(UTC) - self.changed_at < timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class SessionState:
    """What a turn starts from. Bounded by the window, never by the length of the history."""

    head: SessionHead = SessionHead()
    summary: RollingSummary | None = None
    turns: Sequence[PastTurn] = ()
    """The newest turns in order, one more than the model may be shown: the last one may be answered again."""
    earlier: SessionMessage | None = None
    """The message that already has the id of the new one, or the answer that it has joined."""
    question: SessionMessage | None = None
    """The user's message of the latest turn."""
    answer: SessionMessage | None = None
    """The answer of the latest turn."""

    @property
    def summarized_to(self) -> int:
        return self.summary.end_turn_number if self.summary else 0

    def with_answer(self, answer: SessionMessage) -> "SessionState":
        """Return the state with another answer in its place, as the model is shown it."""
        shown = ChatMessage(role="assistant", parts=list(answer.parts))
        turns = [
            replace(turn, messages=(*turn.messages[:-1], shown)) if turn.number == answer.turn_number else turn
            for turn in self.turns
        ]
        return replace(self, turns=turns)

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
    attempt: int = 0
    """More than 0: the turn has begun, and this process continues it in the place of one that died."""
    was_posted: bool = False
    """The message was in the inbox, where another turn may have found it: it must not have joined that one's answer."""
    waited: "SessionMessage | None" = None
    """The waiting answer as it becomes when the turn begins: answered, to go on with it, or closed unanswered."""
    seen_turn_id: str | None = None
    """The run that wrote last when the turn was planned. With `waited` it must still be the last one.

    Whoever gives it has looked: the session had no message of this id.
    """

    @property
    def continues(self) -> bool:
        """Whether the turn goes on with its answer instead of beginning it."""
        return self.waited is not None and self.waited.turn_number == self.turn_number


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


class OpenTurn(Protocol):
    """A running turn, as its owner sees it."""

    def shut_down(self) -> None:
        """End with what there is."""

    async def ended(self) -> None:
        """Wait until everything is stored and released. Never raises."""


class OpenTurns:
    """The running turns of one store."""

    def __init__(self) -> None:
        self._turns: set[OpenTurn] = set()

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: OpenTurn) -> None:
        self._turns.add(turn)

    def discard(self, turn: OpenTurn) -> None:
        self._turns.discard(turn)

    def shut_down(self) -> None:
        """Tell every turn to end with what it has. Safe to call from a signal handler of the event loop."""
        for turn in list(self._turns):
            turn.shut_down()

    async def finish(self) -> None:
        """End every turn and wait until each has stored its answer."""
        while self._turns:
            turns = list(self._turns)
            for turn in turns:
                turn.shut_down()
            await asyncio.gather(*(turn.ended() for turn in turns))
            self._turns.difference_update(turns)


class SessionManager(SummaryStore):
    """Reads and writes one session. What the model is shown of it is decided in `window`, not here.

    Every method raises `StorageUnavailable` when the store cannot be reached.
    """

    open_turns: OpenTurns
    """The turns that run on this store in this process. Whoever closes the store ends them first."""

    def __init__(
        self, user: str, session_id: str | None = None, *, settings: Settings | None = None, category: str | None = None
    ) -> None:
        if not isinstance(user, str):
            raise ConfigurationError(f"the user of a session is {user!r:.100}: pass a name, as text")
        self.user = user
        self.category = category
        self.session_id = check_id(session_id, "session id") if session_id else new_id()
        self.settings = settings or Settings.from_env()
        self.user_id = user_id_of(user)
        self.key = session_key(self.user_id, self.session_id)

    @staticmethod
    def now() -> datetime:
        """The time by which requests expire."""
        return datetime.now(UTC)

    @abstractmethod
    async def head(self) -> SessionHead | None:
        """Read the session itself: one document. None when there is no such session."""

    @abstractmethod
    async def create(self) -> None:
        """Make the session, without turns, unless there is one. Raises `SessionErased`."""

    @abstractmethod
    async def load(self, message_id: str | None = None) -> SessionState:
        """Read what a turn starts from, and the message that already has this id."""

    @abstractmethod
    async def find(self, message_id: str) -> SessionMessage | None:
        """Read the message that has this id, or the answer that it has joined."""

    @abstractmethod
    async def answer(self, turn_number: int) -> SessionMessage | None:
        """Read the stored answer of a turn."""

    @abstractmethod
    async def admit(self, limit: int, turn_id: str) -> Sequence[str]:
        """Take one of the user's slots for a turn, and note the user's category. None leaves it as it was.

        A slot that an earlier turn of this session has left is taken over. Returns nothing when the slot is ours, else
        all slots that are taken. Atomic: of many that ask at the same moment, no more than `limit` get one. Raises
        `SessionErased` while the user is being deleted.
        """

    @abstractmethod
    async def withdraw(self, *slots: str) -> None:
        """Give back slots of the user. One that another turn has taken over meanwhile stays."""

    @abstractmethod
    async def begin_turn(self, start: TurnStart) -> None:
        """Make the user's message durable and fence the session for this turn: both or nothing.

        A turn that is answered again drops the summaries that cover it. One that is continued only moves the fence: an
        earlier attempt can no longer finish it. One that goes on with a waiting answer, or closes one, stores it as
        `start.waited` together with that. Raises `StorageConflict` when the session is not in the state that the
        turn was planned from, `SessionErased` when it is being deleted.
        """

    @abstractmethod
    async def finish_turn(self, answer: SessionMessage, *, attempt: int = 0) -> SessionMessage:
        """Store the answer and free the session, in one transaction; `answer.fence` is the turn's id.

        `attempt` is the one that the turn was begun with.

        Returns what the turn now has: this answer, or the previous one where `answer.replaces(previous)` is false.
        A turn that was closed as interrupted meanwhile, and that nobody has answered again, takes the whole answer.
        Raises `TurnLost` when the session has moved on, `StorageRejected` when the answer cannot be stored as it is.
        """

    @abstractmethod
    async def repair_turn(self, answer: SessionMessage) -> SessionMessage | None:
        """Close a dead turn with what its stream had shown. `answer.turn_number` may be 0: the latest turn is meant.

        Returns what the turn now has; None when the turn was closed already.
        """

    @abstractmethod
    async def change_waiting(self, answer: SessionMessage, *, seen_turn_id: str | None) -> None:
        """Store a waiting answer that was answered in part, or is closed. `answer.turn_id` is who writes it.

        Raises `StorageConflict` when the session is not free, or another run has written since `seen_turn_id`.
        """

    @abstractmethod
    async def rate(self, message_id: str, feedback: Feedback | None) -> SessionMessage:
        """Store what the user thinks of an answer in the answer; None takes it back. Returns the answer.

        An answer that replaces this one starts without feedback. Raises `NotFound`, and `InvalidRequest` for a message
        that is no answer.
        """

    @abstractmethod
    async def rename(self, name: str, *, was: str | None) -> bool:
        """Rename the session if it still has the name it `was` given."""

    @abstractmethod
    async def mark_erased(self) -> bool:
        """Mark the session as deleted: nothing reads or writes it any more. Returns False when there is none."""

    @abstractmethod
    async def erase_some(self, limit: int = 500) -> bool:
        """Delete up to `limit` messages and summaries of a marked session, at last the session itself.

        Returns True when nothing is left. May be repeated after any failure.
        """

    @abstractmethod
    async def mark_user_erased(self, limit: int = 500) -> bool:
        """Mark the user as deleted, then up to `limit` of their sessions: nothing of theirs begins any more.

        Returns True when all are marked.
        """

    @abstractmethod
    async def user_is_erased(self) -> bool:
        """Whether the user is marked as deleted, and not deleted yet."""

    @abstractmethod
    async def sessions_of_user(self, limit: int = 500, *, before: datetime | None = None) -> Sequence["SessionManager"]:
        """Open sessions of the user, those being deleted among them; with `before` only those created earlier."""

    @abstractmethod
    async def forget_user(self) -> bool:
        """Delete a marked user who has no sessions. Returns False when there are some: delete them first."""
