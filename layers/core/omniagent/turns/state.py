"""The state of a turn. Everything that decides or changes it is in this file, and nothing in this file reads or writes.

A session is `idle`, `running` or `waiting`, and any number of messages may be in line. Its document is the only fence:
each `Change` is one compare-and-set of its version, so whoever decided from an older version decides again. A message
has one home at a time: the queue, the turn that answers it, or the history.

    event       idle       running    waiting
    Begin       running               running    a message gets the turn; open requests are closed as unanswered
    Enqueue     idle       running    waiting    a message gets in line
    Join                   running               messages that steer move from the queue to the turn
    TakeOver               running               another process goes on with a turn whose process died
    Withdraw               idle                  a turn that may not run, before its first model call
    Wait                   waiting               the turn needs a human or a client; its answer so far is stored
    Reply                             running    a human replied to the last open request
    PartReply                         waiting    a human replied to one of several requests
    End                    idle                  the answer is stored: complete, cancelled, failed or interrupted
    Close                             idle       the requests expired, or the turn was stopped; a message may follow
    StopQueued  idle       running    waiting    messages in line were stopped
    Switch      idle                  waiting    another branch of the history becomes the active path
    Erase       erased     erased     erased     the session is deleted

`decide` says what a request does: run, follow, replay, queue, interrupt, take over, or be refused (`decisions.py`).
`transition` applies an event (`state_events.py`). One that does not fit the state raises `Moved`: the caller reads the
session again.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Literal

from omniagent.errors import (
    InvalidRequest,
    NotFound,
    NotRegenerable,
    QueueFull,
    StorageConflict,
    TurnInProgress,
)
from omniagent.messages import UNANSWERED_ERROR, SteeringPart, ToolPart, close_open_calls, has_content
from omniagent.protocol.events import AbortReason
from omniagent.session.history import never_arrived
from omniagent.session.ids import first_version, new_id
from omniagent.session.live import (
    MAX_TURNS,
    Change,
    LiveTurn,
    QueuedMessage,
    SessionHead,
    SessionMessage,
    SessionState,
)
from omniagent.session.query import Query
from omniagent.turns.decisions import Decision, Follow, GetInLine, GoOn, Interrupt, Refuse, Replay, Run, WaitInLine
from omniagent.turns.state_events import (
    Begin,
    Close,
    End,
    Enqueue,
    Erase,
    Event,
    Join,
    PartReply,
    Reply,
    StopQueued,
    Switch,
    TakeOver,
    Wait,
    Withdraw,
)

State = Literal["idle", "running", "waiting", "erased"]
TABLE: Final[dict[str, dict[State, State]]] = {
    "Begin": {"idle": "running", "waiting": "running"},
    "Enqueue": {"idle": "idle", "running": "running", "waiting": "waiting"},
    "Join": {"running": "running"},
    "TakeOver": {"running": "running"},
    "Withdraw": {"running": "idle"},
    "Wait": {"running": "waiting"},
    "Reply": {"waiting": "running"},
    "PartReply": {"waiting": "waiting"},
    "End": {"running": "idle"},
    "Close": {"waiting": "idle"},
    "StopQueued": {"idle": "idle", "running": "running", "waiting": "waiting"},
    "Switch": {"idle": "idle", "waiting": "waiting"},
    "Erase": {"idle": "erased", "running": "erased", "waiting": "erased"},
}
"""The state after each event. `docs/design.md` shows the same table."""

EXPIRED_ERROR: Final = "Nobody answered in time. The call was not run."
STOPPED_ERROR: Final = "The turn was stopped before anybody answered. The call was not run."
ANSWERED_BADLY: Final = (
    "The answer to this message is incomplete. Send the message without `background` to answer it again."
)
EDITED_EARLY: Final = "This message is being answered. Stop it before you edit it, or send it with `busy: interrupt`."
JOINED: Final = "This message has joined an answer and cannot be edited. Send a new one."
QUEUE_SECONDS: Final = 2.0
"""How long the request of a queued message may take to begin its turn. After that, the sweep does."""


class Moved(StorageConflict):
    """The event does not fit the session's state any more."""


def transition(session: SessionHead, event: Event, now: datetime, *, lease_seconds: float = 10.0) -> Change:
    """Return the change that an event makes. Raises `Moved` if it does not fit."""
    turn = session.turn
    state: State = "idle" if turn is None else turn.state
    if state not in TABLE[type(event).__name__]:
        raise Moved(f"{type(event).__name__} does not fit a session that is {state}")
    if turn is not None and isinstance(event, Join | Withdraw | Wait | End) and turn.run != event.run:
        raise Moved(f"turn {turn.id} was taken over")
    change = _applied(session, event, now)
    after, stopped = _drained(change.after)
    after = replace(after, version=session.version + 1 if session.version else first_version())
    return replace(change, after=after, inserted=(*change.inserted, *stopped), due=_due(after, now, lease_seconds))


def _applied(session: SessionHead, event: Event, now: datetime) -> Change:  # noqa: C901, PLR0911, PLR0912 - one case per event
    queue, live = session.queue, session.turn
    match event:
        case Begin(turn, closes):
            queue = tuple(message for message in queue if message.node != turn.question)
            branches = max(session.branches, turn.branch)
            after = replace(session, turn=replace(turn, since=now), branches=branches, queue=queue, changed_at=now)
            return Change(session, after, changed=(closes,) if closes is not None else ())
        case Enqueue(message):
            if any(known.id == message.id for known in queue):
                raise Moved("the message is in line already")
            return Change(session, replace(session, queue=(*queue, message)))
        case Join(_, messages) if live is not None:
            ids = {message.id for message in messages}
            turn = replace(live, joined=(*live.joined, *messages))
            return Change(session, replace(session, turn=turn, queue=tuple(m for m in queue if m.id not in ids)))
        case TakeOver(run) if live is not None:
            turn = replace(live, run=run, since=now, attempt=live.attempt + 1)
            return Change(session, replace(session, turn=turn))
        case Withdraw(_, back, changed_at):
            queue = (back, *queue) if back is not None else queue
            return Change(session, replace(session, turn=None, queue=queue, changed_at=changed_at))
        case Wait(_, answer) if live is not None:
            turn = replace(live, state="waiting", message=None, joined=(), until=answer.waiting_until)
            return _stored(session, live, replace(session, turn=turn, changed_at=now), answer)
        case Reply(run, answer) if live is not None:
            turn = replace(live, state="running", run=run, journal=new_id(), since=now, until=None, attempt=0)
            return Change(session, replace(session, turn=turn, changed_at=now), changed=(answer,))
        case PartReply(answer) if live is not None:
            turn = replace(live, until=answer.waiting_until)
            return Change(session, replace(session, turn=turn), changed=(answer,))
        case End(_, answer) if live is not None:
            return _stored(session, live, replace(session, turn=None, changed_at=now), answer)
        case Close(answer, message):
            queue = (*queue, message) if message is not None else queue
            return Change(session, replace(session, turn=None, queue=queue, changed_at=now), changed=(answer,))
        case StopQueued(message_id):
            stopped = (replace(m, is_stopped=m.is_stopped or message_id in (None, m.id)) for m in queue)
            return Change(session, replace(session, queue=tuple(stopped)))
        case Switch(leaf):
            return Change(session, replace(session, leaf=leaf))
        case Erase():
            # The turn stays: whoever deletes the session stops it.
            return Change(session, replace(session, queue=(), is_erased=True))
    raise Moved("the session has no turn")


def _stored(session: SessionHead, turn: LiveTurn, after: SessionHead, answer: SessionMessage) -> Change:
    """Move the turn's message and its answer to the history. The leaf follows if there is something to show."""
    missing = [message for message in turn.joined if message.id not in answer.steering_ids]
    parts = [*answer.parts, *(SteeringPart(message_id=message.id, text=message.text) for message in missing)]
    answer = replace(answer, parts=parts, parent=turn.question, branch=turn.branch, lineage=turn.lineage)
    if turn.message is not None or turn.is_continued or turn.joined or has_content(parts):
        after = replace(after, leaf=turn.place)
    if turn.is_continued:
        return Change(session, after, changed=(answer,))
    question = (turn.message,) if turn.message is not None else ()
    return Change(session, after, inserted=(*question, answer))


def _drained(session: SessionHead) -> tuple[SessionHead, list[SessionMessage]]:
    """Store the stopped messages at the front of an idle session's line, each with an empty answer."""
    stored: list[SessionMessage] = []
    while session.turn is None and session.queue and session.queue[0].is_stopped:
        message, *rest = session.queue
        after = message.after or session.leaf
        question = question_of(message, SessionState(session, after, is_end=after == session.leaf), message.node)
        ending = {"status": "cancelled", "finishReason": "other", "stopReason": "cancelled"}
        answer = replace(
            question,
            id=(answer_id := new_id()),
            node=answer_id,
            role="assistant",
            parts=[],
            status="cancelled",
            metadata={"turnNumber": question.turn_number, **ending},
            parent=question.node,
        )
        stored += [question, answer]
        branches = max(session.branches, question.branch)
        session = replace(session, leaf=answer.place, branches=branches, queue=tuple(rest))
    return session, stored


def question_of(query: Query, state: SessionState, node: str | None = None) -> SessionMessage:
    """Return a user's message as it is stored where the state goes on."""
    spot = state.spot
    return SessionMessage(
        query.message_id,
        "user",
        state.after.turn_number + 1,
        list(query.content),
        metadata=query.metadata,
        node=node or new_id(),
        parent=state.after.node,
        branch=spot.branch,
        lineage=spot.lineage,
    )


def _due(session: SessionHead, now: datetime, lease_seconds: float) -> datetime | None:
    """Return when the sweep looks at the session: its turn may be dead or expired, or its line stand still."""
    turn = session.turn
    if session.is_erased:
        return None
    if turn is not None and turn.state == "running":
        return turn.since + timedelta(seconds=lease_seconds)
    if turn is not None and not _is_replaced(session):
        return turn.until
    return now + timedelta(seconds=QUEUE_SECONDS) if session.queue else None


def is_dead(turn: LiveTurn, last_sign_of_life: datetime | None, now: datetime, lease_seconds: float) -> bool:
    """Whether a running turn's process is gone: neither the turn nor its journal was written for a lease."""
    last = turn.since if last_sign_of_life is None else max(turn.since, last_sign_of_life)
    return now - last > timedelta(seconds=lease_seconds)


def is_over(session: SessionHead, now: datetime) -> bool:
    """Whether nobody can reply to a waiting turn any more: its requests expired, or a message replaces the reply."""
    turn = session.waiting
    return turn is not None and (turn.has_expired(now) or _is_replaced(session))


def _is_replaced(session: SessionHead) -> bool:
    """Whether a message in line is to be answered in place of a reply, as if it were sent now.

    It got in line before the turn waited: one that interrupts, whose signal came too late, or one that would not wait
    for a running turn, but found it dead.
    """
    return any(message.busy in ("interrupt", "reject") and not message.is_stopped for message in session.queue)


def decide(  # noqa: PLR0911 - one return per decision
    state: SessionState, query: Query, *, now: datetime, dead: bool = False, background: bool = False, limit: int = 10
) -> Decision:
    """Decide what a request does.

    `dead` says whether the process of the running turn is gone. A `background` message never runs here: it gets in
    line. `limit` is the maximum length of the line.
    """
    session, earlier = state.head, state.earlier
    is_edited = earlier is not None and earlier.holds(query.message_id) and not earlier.is_same(query)
    if query.regenerate and (is_edited or never_arrived(session, query, earlier)):
        query = replace(query, regenerate=False)
    turn = session.running
    if turn is not None and _is_answered_by(turn, state, query):
        return GoOn() if dead else Follow()
    queued = next((message for message in session.queue if message.id == query.message_id), None)
    if queued is not None and queued.is_same(query):
        return WaitInLine(queued)
    if turn is not None and any(message.id == query.message_id for message in turn.joined):
        return Refuse(InvalidRequest(JOINED))
    asked = turn.message if turn is not None else None
    is_early = queued is not None or (asked is not None and asked.id == query.message_id)
    if is_early and not query.regenerate:
        return Interrupt() if query.busy == "interrupt" and turn is not None else Refuse(TurnInProgress(EDITED_EARLY))
    if query.regenerate:
        return _regenerate(state, query, now, dead=dead)
    if earlier is not None and not earlier.holds(query.message_id):
        return Refuse(InvalidRequest("This message id belongs to an answer. Choose another one."))
    if earlier is not None and earlier.is_same(query):
        return _again(state, earlier, dead=dead, background=background)
    if earlier is not None and earlier.role == "assistant":
        return Refuse(InvalidRequest(JOINED))
    if state.after.turn_number >= MAX_TURNS:
        return Refuse(InvalidRequest("This session has reached its last turn. Start a new one."))
    return _new(state, query, now, dead=dead, background=background, limit=limit)


def _new(state: SessionState, query: Query, now: datetime, *, dead: bool, background: bool, limit: int) -> Decision:
    session, busy = state.head, query.busy or "reject"
    closes = closed_by_message(session.waiting, state.waiting, now)
    is_busy = session.running is not None and not dead
    if is_busy and busy == "reject":
        return Refuse(TurnInProgress(retry_after=1.0))
    if session.running is None and not session.queue and not background:
        return Run(question_of(query, state), closes=closes)
    if len(session.queue) >= limit:
        return Refuse(QueueFull())
    names_place = state.after != session.leaf or query.parent in ("", session.leaf.node)
    return GetInLine(QueuedMessage.of(query, state.after if names_place else None), closes)


def _again(state: SessionState, earlier: SessionMessage, *, dead: bool, background: bool) -> Decision:
    """Decide about a message that the history has: replay its answer, or answer it again if that is incomplete."""
    session, answer = state.head, state.answer
    if answer is not None:
        is_over = answer.status in ("complete", "waiting")
        goes_on = session.leaf.leads_from(answer.place) and session.leaf.node != answer.node
        if is_over or goes_on:
            return Replay(answer)
    if session.running is not None:
        return GoOn(is_own=False) if dead else Refuse(TurnInProgress(retry_after=1.0))
    if background:
        return Refuse(NotRegenerable(ANSWERED_BADLY))
    question = earlier if earlier.role == "user" else state.question
    if question is None:
        return Refuse(NotRegenerable())
    return Run(question, is_new=False, previous=answer)


def _regenerate(state: SessionState, query: Query, now: datetime, *, dead: bool) -> Decision:
    session, earlier, question, answer = state.head, state.earlier, state.question, state.answer
    if session.running is not None:
        if query.busy == "interrupt":
            return Interrupt()
        is_own = _is_named(session.running, query.replaces or query.message_id)
        return GoOn(is_own) if dead else Refuse(TurnInProgress(retry_after=1.0))
    if question is None or (earlier is None and (query.message_id or query.replaces or query.parent)):
        return Refuse(NotFound())
    target = earlier if earlier is not None and earlier.role == "assistant" else answer
    is_result = answer is not None and query.replaces and answer.metadata.get("replaces") == query.replaces
    if answer is not None and is_result and answer.status in ("complete", "waiting"):
        return Replay(answer)  # a retry
    closes = closed_by_message(session.waiting, state.waiting, now)
    previous = closes if closes is not None and target is not None and closes.node == target.node else target
    return Run(question, is_new=False, previous=previous, regenerates=True, closes=closes)


def closed_by_message(turn: LiveTurn | None, answer: SessionMessage | None, now: datetime) -> SessionMessage | None:
    """Return a waiting answer as it ends when a message is sent in place of a reply. None if it does not wait."""
    if turn is None or answer is None or answer.status != "waiting":
        return None
    return closed(answer, "expired", EXPIRED_ERROR) if turn.has_expired(now) else closed(answer, "unanswered")


def closed(answer: SessionMessage, stop_reason: AbortReason, error: str = UNANSWERED_ERROR) -> SessionMessage:
    """Return a waiting answer, closed: pending calls are denied, and approved calls are not run."""
    parts = [part.close(error) if isinstance(part, ToolPart) else part for part in answer.parts]
    metadata = {**answer.metadata, "status": "cancelled", "finishReason": "other", "stopReason": stop_reason}
    return replace(answer, parts=close_open_calls(parts), status="cancelled", metadata=metadata)


def _is_named(turn: LiveTurn, name: str) -> bool:
    """Whether a regeneration means the message or the answer of the running turn, or none in particular."""
    return name in ("", turn.id, turn.message_id, turn.question)


def _is_answered_by(turn: LiveTurn, state: SessionState, query: Query) -> bool:
    """Whether the running turn is the one that this request asks for."""
    if query.regenerate:
        if turn.replaces is None:
            return False
        name = query.replaces or query.message_id
        return name == turn.replaces or (name != turn.id and _is_named(turn, name))
    known = (turn.message, *turn.joined)
    if any(message.id == query.message_id and message.is_same(query) for message in known if message is not None):
        return True
    earlier = state.earlier
    return earlier is not None and earlier.is_same(query) and turn.question in (earlier.node, earlier.parent)
