"""What a session is made of: its messages, their places in its tree, and the live state that is not history yet.

`SessionHead` is the session's document: who may run, the message that is being answered, and those in line. A message
is in the live state or in the history, never in both. `turns.state` decides how the live state changes; a `Change` is
one atomic step of it.

The history is a tree that only grows. A *branch* is an unbroken run of messages, each after the one before it; the
first one is branch 0. Another begins where a message or an answer gets a sibling. Its messages carry their lineage: the
branches that lead to it, each with the last place that belongs to the path. So the path of a message is known without
reading its ancestors, and a page of it is one query over a few branches, whatever the number of turns and branches.

    branch 0   q1 a1 q2 a2 q3 a3
    branch 1         q2'a2'            an edit of q2      lineage ((0, a1),)
    branch 2               a3'         a3 regenerated     lineage ((0, q3),)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Literal

from omniagent.errors import InvalidRequest
from omniagent.messages import ChatMessage, Feedback, Part, Role, Status, TextPart, ToolPart, Usage, steering_of
from omniagent.session.ids import new_id
from omniagent.session.query import Query
from omniagent.session.window import PastTurn, RollingSummary, estimate_answer

MAX_TURNS = 1_000_000
"""Maximum number of turns on a path."""
NEVER = datetime(9999, 12, 31, tzinfo=UTC)
MAX_LINEAGE = 64
"""Branches in a lineage. That of an earlier message on the path goes on where it ends."""

Segment = tuple[int, int]
"""A branch, and the order of its last message that belongs to a path."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a message. The default is the root, before the first message."""

    node: str = ""
    """The message's own id in the tree."""
    order: int = 1
    """Counts along the path: twice the number of its turn, and one more for an answer."""
    branch: int = 0
    lineage: tuple[Segment, ...] = ()

    @property
    def turn_number(self) -> int:
        return self.order // 2

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The path from the root to this place, or the end of a long one."""
        return (*self.lineage, (self.branch, self.order))

    def messages_in(self, turns: int) -> int:
        """Return how many messages the last turns of the path to this place have, if none are deleted."""
        return 2 * turns - 1 + self.order % 2

    def leads_from(self, other: "Place") -> bool:
        """Whether another place is on the path to this one."""
        return any(branch == other.branch and other.order <= last for branch, last in self.segments)

    def before(self, parent: str) -> "Place":
        """Return the place of the parent."""
        if self.lineage and self.lineage[-1][1] >= self.order - 1:
            branch, order = self.lineage[-1]
            return Place(parent, order, branch, self.lineage[:-1])
        return Place(parent, self.order - 1, self.branch, self.lineage)

    def up_to(self, turn_number: int) -> "Place":
        """Return the end of this path in an earlier turn."""
        last = 2 * turn_number + 1
        if last >= self.order:
            return self
        *lineage, (branch, _) = cut(self.segments, last)
        return Place("", last, branch, tuple(lineage))


def cut(segments: Sequence[Segment], last: int) -> tuple[Segment, ...]:
    """Return a path as far as the place with this order."""
    kept = list(segments)
    while len(kept) > 1 and kept[-2][1] >= last:
        kept.pop()
    return (*kept[:-1], *((branch, min(order, last)) for branch, order in kept[-1:]))


ROOT = Place()


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a new message goes: on in the branch of the message before it, or into a branch of its own."""

    branch: int
    lineage: tuple[Segment, ...]

    @classmethod
    def after(cls, place: Place, *, fork: int | None) -> "Spot":
        """Return the spot after a message, in the new branch `fork` if there is one."""
        if fork is None:
            return cls(place.branch, place.lineage)
        return cls(fork, place.segments[-MAX_LINEAGE:])


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """One message of a session: the user's, or the answer of a turn.

    `id` is the id that clients use: chosen by the client for a user's message, the turn's for an answer. It is unique
    on a path. `node` is unique in the session, and the same as `id` for an answer.
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
    node: str = ""
    """By default the same as `id`."""
    parent: str = ""
    """The node of the message before it. Empty for the first."""
    branch: int = 0
    lineage: tuple[Segment, ...] = ()
    siblings: tuple[str, ...] = field(default=(), compare=False)
    """The nodes of all messages with the same parent, if there are others. Set where messages are read to be shown."""
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC), compare=False)
    """When it was stored."""
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """A team's own fields of its document, as far as the class's `api_fields` name them."""

    def __post_init__(self) -> None:
        if not self.node:
            object.__setattr__(self, "node", self.id)

    @property
    def place(self) -> Place:
        order = 2 * self.turn_number + (self.role == "assistant")
        return Place(self.node, order, self.branch, self.lineage)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

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
        """The metadata of the message as clients see it, with its place in the tree and the user's feedback."""
        metadata: dict[str, Any] = {**self.metadata, "nodeId": self.node}
        if self.parent:
            metadata["parentId"] = self.parent
        if self.node in self.siblings:
            index = self.siblings.index(self.node)
            metadata["siblings"] = {"index": index + 1, "count": len(self.siblings)}
            around = {"previous": self.siblings[index - 1 : index], "next": self.siblings[index + 1 : index + 2]}
            metadata["siblings"] |= {name: nodes[0] for name, nodes in around.items() if nodes}
        if self.feedback is not None:
            metadata["feedback"] = self.feedback.model_dump(include={"rating", "text"}, exclude_none=True)
        return metadata

    @property
    def steering_ids(self) -> list[str]:
        """The ids of the user's messages that joined this answer."""
        return [part.message_id for part in steering_of(self.parts)]

    def holds(self, message_id: str) -> bool:
        """Whether a user's message with this id is this one, or has joined it."""
        return message_id in ((self.id, self.node) if self.role == "user" else self.steering_ids)

    def is_same(self, query: Query) -> bool:
        """Whether a message with this one's id has the same parts, here or where it joined this answer."""
        joined = [part.text for part in steering_of(self.parts) if part.message_id == query.message_id]
        return query.repeats(self.parts) or query.text in joined


@dataclass(frozen=True, slots=True)
class QueuedMessage(Query):
    """A user's message in line. It is answered by a turn of its own, unless it steers and joins the running one."""

    is_stopped: bool = False
    """It was stopped. When its turn comes, it is stored with an empty answer."""
    after: Place | None = None
    """The place that it follows: it edits a message, or names its parent. None: the latest."""
    node: str = field(default="", compare=False)
    """Its node in the history: its request finds it there, whatever the active path is then. By default its id."""

    def __post_init__(self) -> None:
        if not self.node:
            object.__setattr__(self, "node", self.message_id)

    @classmethod
    def of(cls, query: Query, after: Place | None = None) -> "QueuedMessage":
        kept = {name: getattr(query, name) for name in ("text", "message_id", "parent", "parts", "metadata")}
        return cls(**kept, busy=query.busy or "queue", after=after, node=new_id())

    @property
    def id(self) -> str:
        return self.message_id

    def steers(self, head: "SessionHead") -> bool:
        """Whether it joins the running turn. A message of another branch gets a turn of its own."""
        return self.busy == "steer" and self.after in (None, head.leaf)

    def is_same(self, query: Query) -> bool:
        """See `SessionMessage.is_same`."""
        return query.repeats(self.content)


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
    question: str
    """The node of the message that it answers."""
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
    """The answer that it is an alternative to, when a message is answered again."""
    branch: int = 0
    lineage: tuple[Segment, ...] = ()

    @property
    def place(self) -> Place:
        """The place of its answer."""
        return Place(self.id, 2 * self.number + 1, self.branch, self.lineage)

    def answer(
        self, parts: Sequence[Part], status: Status, metadata: Mapping[str, Any], **values: Any
    ) -> SessionMessage:
        """Return its answer as it is stored."""
        return SessionMessage(
            self.id,
            "assistant",
            self.number,
            parts,
            status,
            metadata=metadata,
            run=self.run,
            parent=self.question,
            branch=self.branch,
            lineage=self.lineage,
            **values,
        )

    @property
    def asked_at(self) -> Place:
        """The place of the message that it answers."""
        return self.place.before(self.question)

    @property
    def is_continued(self) -> bool:
        """Whether it waited before. What it had shown until then is in the history."""
        return self.journal != self.id

    def is_named(self, message_id: str) -> bool:
        """Whether a stop that names this message, or one that steers the turn, means this turn."""
        steering = (message.id for message in self.joined)
        return message_id in {self.id, self.replaces, self.run, self.message_id, *steering}

    def has_expired(self, now: datetime) -> bool:
        """Whether a request of a waiting turn was not answered in time."""
        return self.until is not None and self.until <= now


@dataclass(frozen=True, slots=True)
class SessionHead:
    """The session without its history. Every change of the turn or the queue raises `version`."""

    version: int = 0
    """0: the session does not exist yet."""
    leaf: Place = ROOT
    """The end of the active path. Nothing follows it in its branch."""
    branches: int = 0
    """The newest branch."""
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

    @property
    def tip(self) -> Place:
        """The end of the path that is shown: the message that is being answered, else the leaf."""
        return self.leaf if self.running is None else self.running.asked_at

    def with_open(self, messages: Sequence[SessionMessage], at: Place) -> Sequence[SessionMessage]:
        """Add the message that is being answered, if it ends the path to this place."""
        question = self.turn.message if self.turn is not None else None
        if question is None or question.node != at.node or any(each.node == at.node for each in messages):
            return messages
        return [*messages, question]

    def holds(self, message_id: str) -> bool:
        """Whether a message with this id is in the live state: it is being answered, has joined, or is in line."""
        turn = self.turn
        asked = (turn.message,) if turn is not None and turn.message is not None else ()
        live = (*asked, *(turn.joined if turn is not None else ()), *self.queue)
        return any(message.id == message_id for message in live)

    def check_agent(self, name: str | None) -> None:
        """Refuse a request that names another agent than the session's."""
        if name is not None and self.agent not in (None, name):
            raise InvalidRequest("agent: this session has another agent. Leave `agent` out, or start a new session.")


@dataclass(frozen=True, slots=True)
class Change:
    """One atomic step: the session before and after it, and what it does to the history."""

    before: SessionHead
    after: SessionHead
    inserted: tuple[SessionMessage, ...] = ()
    changed: tuple[SessionMessage, ...] = ()
    """Answers that waited, as they are now."""
    due: datetime | None = None
    """When the sweep looks at the session. None: there is nothing to do."""
    id: str = field(default_factory=new_id)
    """Chosen before the first try: a repeated write finds itself done."""


@dataclass(frozen=True, slots=True)
class SessionState:
    """What a turn starts from. Its size is bounded by the window, whatever the length of the history."""

    head: SessionHead = SessionHead()
    after: Place = ROOT
    """Where the turn goes on: after this message."""
    is_end: bool = True
    """Whether nothing follows it in its branch."""
    summary: RollingSummary | None = None
    messages: Sequence[SessionMessage] = ()
    """The newest messages of its path in order, of one turn more than the model is shown: the last one may be answered
    again."""
    earlier: SessionMessage | None = None
    """The message of the history that the request names, or the answer that it joined."""
    question: SessionMessage | None = None
    """The user's message of that turn, else of the latest."""
    answer: SessionMessage | None = None
    """The answer of that turn, else of the latest: on the active path if there is one."""
    waiting: SessionMessage | None = None
    """The answer of the waiting turn."""

    @property
    def spot(self) -> Spot:
        """Where the next message goes."""
        return Spot.after(self.after, fork=None if self.is_end else self.head.branches + 1)

    @property
    def turns(self) -> list[PastTurn]:
        """The newest turns of its path in order."""
        return turns_of(self.messages)

    def with_window(self, at: Place, path: Sequence[SessionMessage], summary: RollingSummary | None) -> "SessionState":
        """Return the state in which the turn goes on after a place, with the end of the path to it."""
        number = at.turn_number
        messages = self.head.with_open(path, at)
        last = {each.role: each for each in messages if each.turn_number == number}
        question, answer = last.get("user"), last.get("assistant")
        return replace(self, after=at, messages=messages, summary=summary, question=question, answer=answer)


def turns_of(messages: Sequence[SessionMessage]) -> list[PastTurn]:
    """Group messages, in order, into turns."""
    grouped = ((number, list(group)) for number, group in groupby(messages, key=lambda message: message.turn_number))
    return [
        PastTurn(
            number=number,
            messages=tuple(ChatMessage(role=message.role, parts=list(message.parts)) for message in group),
            tokens=sum(estimate_answer(message.parts, message.usage.output_tokens) for message in group),
        )
        for number, group in grouped
    ]
