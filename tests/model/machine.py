"""The real `decide` and `transition`, on values so small that millions of them fit into memory."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from omniagent.messages import CallRequest, Part, SteeringPart, TextPart, ToolPart
from omniagent.session.live import (
    ROOT,
    Change,
    LiveTurn,
    Place,
    QueuedMessage,
    SessionHead,
    SessionMessage,
    SessionState,
    Spot,
)
from omniagent.session.query import Query
from omniagent.settings import Busy
from omniagent.turns import decisions, state_events
from omniagent.turns import state as states

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=30)


class Violation(Exception):
    """A promise is broken."""


class Turn(NamedTuple):
    """`LiveTurn`, without what does not matter here."""

    message: int
    number: int
    run: int
    state: str
    goes_on: bool
    joined: tuple[int, ...]
    is_new: bool
    spot: Spot = Spot(0, ())
    """Where its answer goes."""


class Session(NamedTuple):
    """`SessionHead`."""

    version: int = 0
    leaf: Place = ROOT
    branches: int = 0
    turn: Turn | None = None
    queue: tuple[tuple[int, bool], ...] = ()
    """Messages in line, and whether they were stopped."""


class Stored(NamedTuple):
    """A user's message in the history."""

    message: int
    number: int
    status: str
    joined: int = -1
    """The message whose answer it has joined."""
    spot: Spot = Spot(0, ())
    """Where its newest answer is."""


History = tuple[Stored, ...]


@dataclass(slots=True)
class Rules:
    """The rules under test. A mutant replaces one of them."""

    decide: Callable[..., decisions.Decision] = states.decide
    transition: Callable[..., Change] = states.transition
    compares_version: bool = True
    reads_live_first: bool = True
    numbers_once: bool = True
    runs_in_doubt: bool = False
    writes_before_tools: bool = True


@dataclass(slots=True)
class Machine:
    """Decides and changes by the rules under test, and remembers every result."""

    busy: tuple[Busy, Busy]
    rules: Rules
    _decided: dict[Any, decisions.Decision] = field(default_factory=dict)
    _changed: dict[Any, tuple[Session, History] | None] = field(default_factory=dict)

    def decision(self, session: Session, history: History, message: int, *, dead: bool) -> decisions.Decision:
        key = (session, history, message, dead)
        if key not in self._decided:
            query = Query(f"text {message}", f"m{message}", busy=self.busy[message])
            self._decided[key] = self.rules.decide(_state(session, history, message), query, now=NOW, dead=dead)
        return self._decided[key]

    def change(self, session: Session, history: History, event: tuple[Any, ...]) -> tuple[Session, History] | None:
        """Return the session and the history after an event. None if it does not fit."""
        key = (session, history, event)
        if key not in self._changed:
            try:
                change = self.rules.transition(_head(session), self._event(session, event), NOW)
            except states.Moved:
                self._changed[key] = None
            else:
                self._changed[key] = (_session(change, session), _history(history, change))
        return self._changed[key]

    def _event(self, session: Session, event: tuple[Any, ...]) -> state_events.Event:  # noqa: PLR0911 - one per event
        match event:
            case ("begin", int(message), int(run), bool(is_new), int(number)):
                leaf = session.leaf
                spot = Spot.after(leaf, fork=None)
                if not is_new:  # beside its answer, which is the latest
                    spot = Spot.after(leaf.before(f"m{message}"), fork=session.branches + 1)
                begun = Turn(message, number, run, "running", False, (), is_new, spot)
                return state_events.Begin(_live(begun))
            case ("enqueue", int(message)):
                return state_events.Enqueue(QueuedMessage(f"text {message}", f"m{message}", busy=self.busy[message]))
            case ("join", int(run), joined):
                messages = tuple(QueuedMessage(f"text {m}", f"m{m}", busy=self.busy[m]) for m in joined)
                return state_events.Join(str(run), messages)
            case ("take", int(run)):
                return state_events.TakeOver(str(run))
            case ("end", int(run), joined, str(status)):
                return _ending(session, run, joined, status)
            case ("reply", int(run)):
                return state_events.Reply(str(run), _answer(_running(session), (), "waiting", replied=True))
            case ("close",):
                return state_events.Close(_answer(_running(session), (), "cancelled"))
            case ("stop", int(message)):
                return state_events.StopQueued(f"m{message}")
        raise ValueError(event)


def _running(session: Session) -> Turn:
    if session.turn is None:
        raise ValueError("no turn")
    return session.turn


def _ending(session: Session, run: int, joined: tuple[int, ...], status: str) -> state_events.Event:
    if session.turn is None:
        raise states.Moved("the turn has ended")
    answer = _answer(session.turn, joined, status)
    return state_events.Wait(str(run), answer) if status == "waiting" else state_events.End(str(run), answer)


def _answer(turn: Turn, joined: tuple[int, ...], status: Any, *, replied: bool = False) -> SessionMessage:
    parts: list[Part] = [SteeringPart(message_id=f"m{m}", text=f"text {m}") for m in joined]
    if status == "waiting":
        request = CallRequest(id="r", kind="approval", expires_at=LATER, approved=True if replied else None)
        parts.append(ToolPart(call_id="c", name="tool", input={}, request=request))
    return SessionMessage(
        f"t{turn.message}",
        "assistant",
        turn.number,
        [*parts, TextPart(text="answer")],
        status,
        parent=f"m{turn.message}",
        branch=turn.spot.branch,
        lineage=turn.spot.lineage,
    )


def _live(turn: Turn) -> LiveTurn:
    turn_id, spot = f"t{turn.message}", turn.spot
    return LiveTurn(
        turn_id,
        turn.number,
        str(turn.run),
        f"{turn_id}.goes-on" if turn.goes_on else turn_id,
        f"m{turn.message}",
        NOW,
        f"m{turn.message}",
        state=turn.state,  # type: ignore[arg-type]
        message=_question(turn.message, turn.number, spot) if turn.is_new else None,
        joined=tuple(QueuedMessage(f"text {m}", f"m{m}", busy="steer") for m in turn.joined),
        until=LATER if turn.state == "waiting" else None,
        branch=spot.branch,
        lineage=spot.lineage,
    )


def _head(session: Session) -> SessionHead:
    live = _live(session.turn) if session.turn is not None else None
    queue = tuple(QueuedMessage(f"text {m}", f"m{m}", busy="steer", is_stopped=stopped) for m, stopped in session.queue)
    return SessionHead(session.version, session.leaf, session.branches, live, queue, changed_at=NOW)


def _session(change: Change, before: Session) -> Session:
    head = change.after
    live = head.turn
    turn = None
    if live is not None:
        joined = tuple(int(message.id[1:]) for message in live.joined)
        is_new = live.message is not None
        message = int(live.message_id[1:])
        turn = Turn(
            message,
            live.number,
            int(live.run),
            live.state,
            live.journal != live.id,
            joined,
            is_new,
            Spot(live.branch, live.lineage),
        )
    queue = tuple((int(message.id[1:]), message.is_stopped) for message in head.queue)
    return Session(before.version + 1, _leaf(change), head.branches, turn, queue)


def _leaf(change: Change) -> Place:
    """Return the leaf. The answer of a message that was stopped in line has a random id: it gets that of a turn."""
    asked = {message.node: message.id for message in change.inserted if message.role == "user"}
    answered = {message.node: asked.get(message.parent) for message in change.inserted if message.role != "user"}
    leaf = change.after.leaf
    message_id = answered.get(leaf.node)
    return leaf if message_id is None else replace(leaf, node=f"t{message_id[1:]}")


def _history(history: History, change: Change) -> History:
    """Return the history after a change, with the status of each message's answer."""
    stored = {each.message: each for each in history}
    answers = {
        message.turn_number: message for message in (*change.inserted, *change.changed) if message.role != "user"
    }
    for message in change.inserted:
        if message.role == "user":
            index = int(message.id[1:])
            if index in stored:
                raise Violation("a message is stored twice")
            answer = answers[message.turn_number]
            spot = Spot(answer.branch, answer.lineage)
            stored[index] = Stored(index, message.turn_number, answer.status, spot=spot)
    for answer in answers.values():
        owner = int(answer.id[1:]) if answer.id.startswith("t") else -1
        if owner in stored:
            stored[owner] = stored[owner]._replace(status=answer.status, spot=Spot(answer.branch, answer.lineage))
        for message_id in answer.steering_ids:
            index = int(message_id[1:])
            stored.setdefault(index, Stored(index, answer.turn_number, answer.status, owner))
    return tuple(stored[index] for index in sorted(stored))


def _state(session: Session, history: History, message: int) -> SessionState:
    """Return what `SessionManager.load` would."""
    head = _head(session)
    by_message = {stored.message: stored for stored in history}
    found = by_message.get(message)
    if found is None:
        return SessionState(head, after=head.leaf)
    owner = found if found.joined < 0 else by_message[found.joined]
    question, answer = _question(owner.message, owner.number), _stored_answer(owner, history)
    earlier = question if found.joined < 0 else answer
    after = answer.place.before(question.node)
    return SessionState(head, after=after, is_end=False, earlier=earlier, question=question, answer=answer)


def _question(message: int, number: int, spot: Spot = Spot(0, ())) -> SessionMessage:
    parts = [TextPart(text=f"text {message}")]
    return SessionMessage(f"m{message}", "user", number, parts, branch=spot.branch, lineage=spot.lineage)


def _stored_answer(stored: Stored, history: History) -> SessionMessage:
    joined = tuple(each.message for each in history if each.joined == stored.message)
    turn = Turn(stored.message, stored.number, 0, "running", False, joined, False, stored.spot)
    return _answer(turn, joined, stored.status)
