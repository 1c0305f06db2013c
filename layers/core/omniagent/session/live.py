"""What a session is made of: its messages, and the live state that is not history yet.

`SessionHead` is the session's document: who may run, the message that is being answered, and those in line. A message
is in the live state or in the history, never in both. `turns.state` decides how the live state changes; a `Change` is
one atomic step of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Literal

from omniagent.errors import InvalidRequest
from omniagent.messages import ChatMessage, Feedback, Part, Role, Status, ToolPart, Usage, has_content, steering_of
from omniagent.session.ids import new_id
from omniagent.session.summary_store import RollingSummary
from omniagent.session.window import PastTurn, estimate_answer, estimate_parts
from omniagent.settings import Busy

NEVER = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """One message of a session: the user's, or the answer of a turn.

    `id` is the id that clients use: chosen by the client for a user's message, the turn's for an answer.
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
    run: str = field(default="", compare=False)
    """The process that wrote the answer."""

    @property
    def text(self) -> str:
        return ChatMessage(role=self.role, parts=list(self.parts)).text

    @property
    def pending(self) -> list[ToolPart]:
        """The calls that wait for a reply. Empty unless the turn is waiting."""
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
class QueuedMessage:
    """A user's message in line. It is answered by a turn of its own, unless it steers and joins the running one."""

    id: str
    text: str
    busy: Busy = "queue"
    is_stopped: bool = False
    """It was stopped. When its turn comes, it is stored with an empty answer."""


@dataclass(frozen=True, slots=True)
class LiveTurn:
    """The session's turn, from its beginning until its answer is complete in the history."""

    id: str
    """The id of its answer."""
    number: int
    run: str
    """The fence: the process that last began, took over or continued the turn. No other may end it."""
    journal: str
    """The id of its journal. The answer's own id, or another one for a turn that goes on after it waited."""
    message_id: str
    """The id of the message that it answers."""
    since: datetime
    """When `run` took the turn."""
    state: Literal["running", "waiting"] = "running"
    message: SessionMessage | None = None
    """The message, until the turn's end moves it to the history. None if it is there already."""
    joined: tuple[QueuedMessage, ...] = ()
    """The messages that steer it."""
    attempt: int = 0
    """How many processes worked on it before `run`."""
    until: datetime | None = None
    """When the first request of a waiting turn expires."""
    replaces: str | None = None
    """The id of the answer that it replaces, when a message is answered again."""

    @property
    def is_continued(self) -> bool:
        """Whether it waited before. What it had shown until then is in the history."""
        return self.journal != self.id

    @property
    def message_ids(self) -> set[str]:
        """The ids of the messages that it answers: its own, and those that steer it."""
        return {self.message_id, *(message.id for message in self.joined)}

    def is_named(self, message_id: str | None) -> bool:
        """Whether a stop that names this message, or none, means this turn."""
        return message_id is None or message_id in {self.id, self.replaces, self.run} | self.message_ids

    def has_expired(self, now: datetime) -> bool:
        """Whether a request of a waiting turn was not answered in time."""
        return self.until is not None and self.until <= now


@dataclass(frozen=True, slots=True)
class SessionHead:
    """The session without its history. Every change of the turn or the queue raises `version`."""

    version: int = 0
    """0: the session does not exist yet."""
    latest_turn_number: int = 0
    turn: LiveTurn | None = None
    queue: tuple[QueuedMessage, ...] = ()
    name: str | None = None
    agent: str | None = None
    """The name of its agent in `Project(agents=…)`, chosen by its first message."""
    changed_at: datetime | None = field(default=None, compare=False)
    """When the last turn began or ended."""
    is_erased: bool = False
    summary_basis: str | None = field(default=None, compare=False)
    """Changes when a message is deleted or a rebuild replaces the summaries. None: the store deletes no messages."""

    @property
    def running(self) -> LiveTurn | None:
        """The turn, if it runs."""
        return self.turn if self.turn is not None and self.turn.state == "running" else None

    @property
    def waiting(self) -> LiveTurn | None:
        """The turn, if it waits for a human or a client."""
        return self.turn if self.turn is not None and self.turn.state == "waiting" else None

    def check_agent(self, name: str | None) -> None:
        """Refuse a request that names another agent than the session's."""
        if name is not None and self.agent not in (None, name):
            raise InvalidRequest("agent: this session has another agent. Leave `agent` out, or start a new session.")

    def is_answering(self, message: SessionMessage) -> bool:
        """Whether the running turn is this message's."""
        return self.running is not None and message.turn_number == self.running.number

    def ended_within(self, seconds: float) -> bool:
        """Whether the last turn ended less than `seconds` ago and none has begun since."""
        if self.running is not None or self.changed_at is None:
            return False
        return datetime.now(UTC) - self.changed_at < timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Change:
    """One atomic step: the session before and after it, and what it does to the history."""

    before: SessionHead
    after: SessionHead
    inserted: tuple[SessionMessage, ...] = ()
    changed: tuple[SessionMessage, ...] = ()
    """Answers that waited, as they are now."""
    deleted: str | None = None
    """The id of the answer that an inserted one replaces."""
    due: datetime | None = None
    """When the sweep looks at the session. None: there is nothing to do."""
    id: str = field(default_factory=new_id)
    """Chosen before the first try: a repeated write finds itself done."""

    @property
    def has_history(self) -> bool:
        return bool(self.inserted or self.changed)


@dataclass(frozen=True, slots=True)
class SessionState:
    """What a turn starts from. Its size is bounded by the window, whatever the length of the history."""

    head: SessionHead = SessionHead()
    summary: RollingSummary | None = None
    turns: Sequence[PastTurn] = ()
    """The newest turns in order, one more than the model is shown: the last one may be answered again."""
    earlier: SessionMessage | None = None
    """The message of the history with the new message's id, or the answer that it joined."""
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
