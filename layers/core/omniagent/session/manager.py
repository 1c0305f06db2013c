"""`SessionManager`: one session of one user, in any store, and the types of a session's state."""

import asyncio
import hashlib
import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
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
"""No leading dot: clients resolve `/sessions/..` before they send it, and could not reach that session again."""
_ID = re.compile(ID_PATTERN)
NOT_AN_ANSWER = "Only an answer can be rated."
NEVER = datetime(9999, 12, 31, tzinfo=UTC)


def new_id() -> str:
    return uuid.uuid4().hex


def check_id(value: str, what: str) -> str:
    """Return the id. Raises `InvalidRequest` if it is not a plain token."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidRequest(f"{what} must be 1 to 128 of the characters A-Z a-z 0-9 _ . ~ - and begin with no dot")
    return value


def slot_of(key: str, turn_id: str) -> str:
    """Return the name of the slot that a running turn takes from its user's limit."""
    return f"{key}#{turn_id}"


def session_of_slot(slot: str) -> str:
    """Return the key of the session whose turn holds a slot."""
    return slot.partition("#")[0]


def continuation_id(message_id: str) -> str:
    """Return an id for a run that continues a waiting answer: a new fencing token for the same message."""
    return f"{new_id()}.{message_id}"


def message_id_of(turn_id: str) -> str:
    """Return the id of the answer that a run writes: the run's own id, or that of the answer that it continues."""
    return turn_id.rpartition(".")[2]


def user_id_of(client_id: str) -> str:
    return hashlib.blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def session_key(user_id: str, session_id: str) -> str:
    return f"{user_id}:{session_id}"


def public_session_id(key: str) -> str:
    """Return the session id that the client uses."""
    return key.partition(":")[2]


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """One message of a session: the user's, or the answer of a turn.

    `id` is the id that clients use: chosen by the client for a user's message, the turn's first run for an answer.
    """

    id: str
    role: Role
    turn_number: int
    parts: Sequence[Part]
    status: Status = "complete"
    usage: Usage = Usage()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    trace: str | None = field(default=None, compare=False)
    """The W3C `traceparent` of the turn's span: feedback is recorded in that trace."""
    feedback: Feedback | None = None
    turn_id: str = field(default="", compare=False)
    """The fencing token of the run that wrote it, if it differs from the message's id. Not stored."""

    @property
    def text(self) -> str:
        return ChatMessage(role=self.role, parts=list(self.parts)).text

    @property
    def fence(self) -> str:
        """The fencing token: the answer is stored only if this is the session's active turn."""
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
        """Whether this answer replaces its turn's previous one: only if it has content or newly joined messages."""
        if previous is None or has_content(self.parts):
            return True
        return any(message_id not in previous.steering_ids for message_id in self.steering_ids)

    @property
    def steering_ids(self) -> list[str]:
        """The ids of the user's messages that joined this answer."""
        return [part.message_id for part in steering_of(self.parts)]

    def was_sent_as(self, message_id: str) -> bool:
        """Whether a user's message with this id is this one or has joined it. Otherwise the id is an answer's own."""
        return self.role == "user" or message_id in self.steering_ids


@dataclass(frozen=True, slots=True)
class SessionHead:
    """The session without its messages. `active_turn_id` is the fence: only that turn may write."""

    latest_turn_number: int = 0
    active_turn_id: str | None = None
    name: str | None = None
    changed_at: datetime | None = field(default=None, compare=False)
    """When the last turn began or ended."""
    latest_turn_id: str | None = field(default=None, compare=False)
    """The run that last began, finished or closed a turn. Writes to a waiting answer are conditional on it."""
    waiting_until: datetime | None = None
    """When the latest turn, which is waiting, expires; None if it does not wait."""
    attempt: int = field(default=0, compare=False)
    """The latest attempt at the active turn: 0 for its first process."""
    summary_basis: str | None = field(default=None, compare=False)
    """Changes when a message is deleted or a rebuild replaces the summaries. None: the store deletes no messages."""

    @property
    def waiting_id(self) -> str | None:
        """The id of the waiting answer. None if the session does not wait."""
        if self.active_turn_id is not None or self.waiting_until is None:
            return None
        return message_id_of(self.latest_turn_id or "")

    def is_answering(self, message: SessionMessage) -> bool:
        """Whether the running turn is this message's: the first run of its turn, or one that answers it again."""
        return self.active_turn_id is not None and message.turn_number == self.latest_turn_number

    def has_expired(self, now: datetime) -> bool:
        """Whether the latest turn waits for a request that has expired."""
        return self.active_turn_id is None and self.waiting_until is not None and self.waiting_until <= now

    def has_begun(self, turn_id: str, attempt: int) -> bool:
        """Whether this turn is the latest, and this process, or a later one, has begun to work on it."""
        return self.latest_turn_id == turn_id and (self.active_turn_id is None or self.attempt >= attempt)

    def has_ended(self, turn_id: str) -> bool:
        """Whether this turn is the latest and has ended."""
        return self.active_turn_id is None and self.latest_turn_id == turn_id

    def ended_within(self, seconds: float) -> bool:
        """Whether the last turn ended less than `seconds` ago and none has begun since."""
        if self.active_turn_id is not None or self.changed_at is None:
            return False
        return datetime.now(UTC) - self.changed_at < timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class SessionState:
    """What a turn starts from. Its size is bounded by the window, whatever the length of the history."""

    head: SessionHead = SessionHead()
    summary: RollingSummary | None = None
    turns: Sequence[PastTurn] = ()
    """The newest turns in order, one more than the model is shown: the last one may be answered again."""
    earlier: SessionMessage | None = None
    """The stored message with the new message's id, or the answer that it joined."""
    question: SessionMessage | None = None
    """The user's message of the latest turn."""
    answer: SessionMessage | None = None
    """The answer of the latest turn."""

    @property
    def summarized_to(self) -> int:
        return self.summary.end_turn_number if self.summary else 0

    def with_answer(self, answer: SessionMessage) -> "SessionState":
        """Return the state in which the model sees this version of an answer."""
        message = ChatMessage(role="assistant", parts=list(answer.parts))
        turns = [
            replace(turn, messages=(*turn.messages[:-1], message)) if turn.number == answer.turn_number else turn
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
    """The turn exists and is answered again; its message is already stored."""
    attempt: int = 0
    """Above 0: the turn has already begun, and this process takes it over."""
    was_posted: bool = False
    """The message was queued in the inbox. The turn must not begin if the message has joined another answer."""
    waited: "SessionMessage | None" = None
    """The waiting answer as it is stored when the turn begins: answered and continued, or closed as unanswered."""
    seen_turn_id: str | None = None
    """The session's `latest_turn_id` when the turn was planned. With `waited`, it must not have changed.

    If it is set, the planner has checked that the session had no message with this id.
    """


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
        """End early and keep the text so far."""

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
        """End every turn early; each keeps its text. Safe to call from a signal handler of the event loop."""
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
    """Reads and writes one session. `window` decides what the model is shown of it.

    Every method raises `StorageUnavailable` if the store cannot be reached.
    """

    open_turns: OpenTurns
    """The turns that this process runs on the store. They must be ended before the store is closed."""

    def __init__(
        self, user: str, session_id: str | None = None, *, settings: Settings | None = None, category: str | None = None
    ) -> None:
        if not isinstance(user, str) or not user:
            raise ConfigurationError(f"the user of a session is {user!r:.100}: pass a name, as text")
        if not isinstance(category, str | None):
            raise ConfigurationError(f"the category of a user is {category!r:.100}: pass a name, as text, or None")
        if not isinstance(settings, Settings | None):
            raise ConfigurationError(f"the settings of a session are {settings!r:.100}: pass Settings(…), or None")
        self.user = user
        self.category = category
        self.session_id = check_id(session_id, "session id") if session_id else new_id()
        self._has_settings = settings is not None
        self.settings = settings or Settings.from_env()
        self.user_id = user_id_of(user)
        self.key = session_key(self.user_id, self.session_id)

    def use_settings(self, read: Callable[[], Settings]) -> None:
        """Use these settings if the session was created without any."""
        if not self._has_settings:
            self.settings = read()

    @staticmethod
    def now() -> datetime:
        """The clock for the expiry of requests."""
        return datetime.now(UTC)

    @abstractmethod
    async def head(self) -> SessionHead | None:
        """Read the session itself: one document. None if it does not exist."""

    @abstractmethod
    async def create(self) -> None:
        """Create the session, without turns, if it does not exist. Raises `SessionErased`."""

    @abstractmethod
    async def load(self, message_id: str | None = None) -> SessionState:
        """Read what a turn starts from, and the stored message with this id."""

    @abstractmethod
    async def find(self, message_id: str) -> SessionMessage | None:
        """Read the message with this id, or the answer that it joined."""

    @abstractmethod
    async def messages(self, first: int, last: int) -> Sequence[SessionMessage]:
        """Read the messages of the turns `first` to `last` in order, with the question that is being answered."""

    async def answer(self, turn_number: int) -> SessionMessage | None:
        """Read the stored answer of a turn."""
        messages = await self.messages(turn_number, turn_number)
        return next((message for message in messages if message.role == "assistant"), None)

    @abstractmethod
    async def admit(self, limit: int, turn_id: str) -> Sequence[str]:
        """Take one of the user's slots for a turn, and store the session's category if it has one.

        A slot of an earlier turn of this session is replaced. Returns an empty sequence on success, otherwise all
        slots that are taken. Atomic: concurrent callers never get more than `limit` slots. Raises `SessionErased`
        while the user is being deleted.
        """

    @abstractmethod
    async def withdraw(self, *slots: str) -> None:
        """Release slots of the user. A slot that another turn has replaced is not affected."""

    @abstractmethod
    async def begin_turn(self, start: TurnStart) -> None:
        """Store the user's message and fence the session for this turn, atomically.

        `start.waited` is stored with them. A takeover only moves the fence, so that an earlier attempt can no longer
        finish the turn. Raises `StorageConflict` if the session is not in the state that the turn was planned from,
        `SessionErased` if it is being deleted.
        """

    @abstractmethod
    async def finish_turn(self, answer: SessionMessage, *, attempt: int = 0) -> SessionMessage:
        """Store the answer and clear the fence, in one transaction. `answer.fence` is the turn's id.

        `attempt` is the one that the turn was begun with.

        Returns the turn's stored answer: this one, or the previous one if `answer.replaces(previous)` is false. If the
        turn was meanwhile closed as interrupted, and not answered again, this answer replaces the interrupted one.
        Raises `TurnLost` if the session has moved on or another attempt has finished the turn, `StorageRejected` if the
        answer cannot be stored as it is.
        """

    @abstractmethod
    async def repair_turn(self, answer: SessionMessage) -> SessionMessage | None:
        """Store what a dead turn had streamed as its answer, and clear the fence. `answer.turn_number` is ignored.

        Returns the turn's stored answer. None if the turn was already closed.
        """

    @abstractmethod
    async def change_waiting(self, answer: SessionMessage, *, seen_turn_id: str | None) -> None:
        """Store a waiting answer that was answered in part or is closed. `answer.turn_id` identifies this write.

        Raises `StorageConflict` if a turn is running, or another run has written since `seen_turn_id`.
        """

    @abstractmethod
    async def rate(self, message_id: str, feedback: Feedback | None) -> SessionMessage:
        """Store the user's feedback in an answer; None removes it. Returns the answer.

        An answer that replaces this one starts without feedback. Raises `NotFound`, and `InvalidRequest` for a message
        that is not an answer.
        """

    @abstractmethod
    async def rename(self, name: str, *, was: str | None) -> bool:
        """Rename the session if its name is still `was`. Returns False otherwise."""

    @abstractmethod
    async def mark_erased(self) -> bool:
        """Mark the session as deleted: nothing can read or write it any more. Returns False if it does not exist."""

    @abstractmethod
    async def erase_some(self, limit: int = 500) -> bool:
        """Delete up to `limit` messages and summaries of a marked session, then the session itself.

        Returns True when nothing is left. Can be repeated after any failure.
        """

    @abstractmethod
    async def mark_user_erased(self, limit: int = 500) -> bool:
        """Mark the user as deleted, then up to `limit` of their sessions. No turn of theirs can begin any more.

        Returns True when all are marked.
        """

    @abstractmethod
    async def user_is_erased(self) -> bool:
        """Whether the user is marked as deleted but not deleted yet."""

    @abstractmethod
    async def sessions_of_user(self, limit: int = 500, *, before: datetime | None = None) -> Sequence["SessionManager"]:
        """Return sessions of the user, including those being deleted; with `before`, only those created earlier."""

    @abstractmethod
    async def forget_user(self) -> bool:
        """Delete a marked user. Returns False if there are sessions, which must be deleted first."""
