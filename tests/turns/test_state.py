"""The state machine of a session's turn, alone: every event in every state, and every decision."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omniagent.errors import InvalidRequest, NotFound, NotRegenerable, QueueFull, TurnInProgress
from omniagent.messages import CallRequest, SteeringPart, TextPart, ToolPart
from omniagent.session.live import (
    MAX_TURNS,
    ROOT,
    LiveTurn,
    Place,
    QueuedMessage,
    SessionHead,
    SessionMessage,
    SessionState,
)
from omniagent.session.query import Query
from omniagent.turns import decisions, state
from omniagent.turns.state import TABLE, Moved, decide, is_dead, transition
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

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=1)
QUESTION = SessionMessage("m1", "user", 1, [TextPart(text="Hi")])
ANSWER = SessionMessage("a1", "assistant", 1, [TextPart(text="Hello")])
CALL = ToolPart(call_id="c1", name="pay", input={}, request=CallRequest(id="r1", kind="approval", expires_at=LATER))
WAITING_ANSWER = replace(ANSWER, parts=[CALL], status="waiting")
TURN = LiveTurn("a1", 1, "run", "a1", "m1", NOW, "m1", message=QUESTION)
QUEUED, STEERING = QueuedMessage("Next", "q"), QueuedMessage("Shorter", "s", busy="steer")

IDLE = SessionHead(3, ANSWER.place)
RUNNING = SessionHead(3, turn=TURN)
WAITING = SessionHead(3, ANSWER.place, turn=replace(TURN, state="waiting", message=None, until=LATER))
HEADS = {"idle": IDLE, "running": RUNNING, "waiting": WAITING}
EVENTS: dict[str, Event] = {
    "Begin": Begin(replace(TURN, id="a2", number=2)),
    "Enqueue": Enqueue(QUEUED),
    "Join": Join("run", ()),
    "TakeOver": TakeOver("run-2"),
    "Withdraw": Withdraw("run"),
    "Wait": Wait("run", WAITING_ANSWER),
    "Reply": Reply("run-2", WAITING_ANSWER),
    "PartReply": PartReply(WAITING_ANSWER),
    "End": End("run", ANSWER),
    "Close": Close(ANSWER),
    "StopQueued": StopQueued(None),
    "Switch": Switch(ROOT),
    "Erase": Erase(),
}


def test_the_table_in_the_docstring_is_the_table() -> None:
    lines = (state.__doc__ or "").splitlines()
    [header] = [line for line in lines if line.startswith("    event ")]
    columns = {name: header.index(name) for name in ("idle", "running", "waiting")}
    rows = {match[1]: line for line in lines if (match := re.match(r"    ([A-Z]\w+) ", line))}
    shown = {
        name: {at: cell[1] for at, column in columns.items() if (cell := re.match(r"(\w+)", row[column : column + 9]))}
        for name, row in rows.items()
    }
    assert shown == TABLE


@pytest.mark.parametrize("at", HEADS)
@pytest.mark.parametrize("name", EVENTS)
def test_every_event_in_every_state_follows_the_table(name: str, at: str) -> None:
    assert EVENTS.keys() == TABLE.keys()
    head, after = HEADS[at], {str(key): value for key, value in TABLE[name].items()}.get(at)
    if after is None:
        with pytest.raises(Moved):
            transition(head, EVENTS[name], NOW)
        return
    change = transition(head, EVENTS[name], NOW)
    assert change.before is head
    assert change.after.version == head.version + 1
    turn = change.after.turn
    assert ("erased" if change.after.is_erased else turn.state if turn is not None else "idle") == after


@pytest.mark.parametrize("event", [Join("other", ()), Withdraw("other"), Wait("other", ANSWER), End("other", ANSWER)])
def test_a_run_that_lost_the_turn_changes_nothing(event: Event) -> None:
    with pytest.raises(Moved, match="taken over"):
        transition(RUNNING, event, NOW)


def test_a_message_has_one_home_at_a_time() -> None:
    queued = replace(RUNNING, queue=(STEERING, QUEUED))
    with pytest.raises(Moved):
        transition(queued, Enqueue(QUEUED), NOW)
    joined = transition(queued, Join("run", (STEERING,)), NOW).after
    assert joined.turn is not None
    assert (joined.queue, joined.turn.joined) == ((QUEUED,), (STEERING,))
    end = transition(joined, End("run", ANSWER), NOW)
    assert ([message.id for message in end.inserted], end.after.queue) == ([QUESTION.id, ANSWER.id], (QUEUED,))
    assert (end.inserted[1].steering_ids, end.after.turn) == ([STEERING.id], None)
    begun = transition(end.after, Begin(replace(TURN, id="a2", number=2, message_id="q", question="q")), NOW)
    assert (begun.after.queue, begun.after.tip.turn_number) == ((), 2)
    back = transition(begun.after, Withdraw("run", QUEUED), NOW).after
    assert (back.queue, back.tip.turn_number, back.turn) == ((QUEUED,), 1, None)


def test_a_turn_waits_goes_on_and_changes_its_answer_in_place() -> None:
    waits = transition(RUNNING, Wait("run", WAITING_ANSWER), NOW)
    assert waits.inserted == (QUESTION, replace(WAITING_ANSWER, parent="m1"))
    assert waits.after.waiting is not None
    assert (waits.after.waiting.until, waits.due) == (LATER, LATER)
    going_on = transition(waits.after, Reply("run-2", WAITING_ANSWER), NOW).after
    assert going_on.running is not None
    assert (going_on.running.run, going_on.running.is_continued, going_on.running.attempt) == ("run-2", True, 0)
    end = transition(going_on, End("run-2", ANSWER), NOW)
    assert (end.inserted, end.changed, end.after.turn) == ((), (replace(ANSWER, parent="m1"),), None)
    assert end.after.leaf == ANSWER.place


def test_another_answer_becomes_the_leaf_only_if_it_shows_something() -> None:
    lineage = (QUESTION.place.segments[-1],)
    turn = replace(TURN, id="a2", journal="a2", message=None, replaces="a1", branch=1, lineage=lineage)
    again = replace(IDLE, turn=turn)
    assert again.tip == QUESTION.place
    other = SessionMessage("a2", "assistant", 1, [TextPart(text="Hey")], parent="m1", branch=1, lineage=lineage)
    end = transition(again, End("run", replace(other, parent="", branch=0, lineage=())), NOW)
    assert (end.inserted, end.after.leaf) == ((other,), other.place)
    nothing = transition(again, End("run", replace(other, parts=[], status="cancelled")), NOW)
    assert (nothing.inserted[0].place, nothing.after.leaf) == (other.place, ANSWER.place)


def test_a_branch_gets_a_number_and_a_turn_moves_no_leaf_before_its_end() -> None:
    begun = transition(IDLE, Begin(replace(TURN, branch=4)), NOW).after
    assert (begun.branches, begun.leaf) == (4, ANSWER.place)
    assert transition(begun, Withdraw("run"), NOW).after.leaf == ANSWER.place


def test_stopped_messages_are_stored_when_no_turn_is_before_them() -> None:
    line = (QUEUED, QueuedMessage("Later", "q2"), STEERING)
    running = transition(replace(RUNNING, queue=line), StopQueued("q"), NOW)
    assert running.inserted == ()
    end = transition(running.after, End("run", ANSWER), NOW)
    assert [(message.id, message.status) for message in end.inserted[2::2]] == [("q", "complete")]
    assert (end.inserted[3].status, end.inserted[3].parts) == ("cancelled", [])
    assert (end.after.tip.turn_number, end.after.queue) == (2, line[1:])
    rest = transition(end.after, StopQueued(None), NOW)
    assert (len(rest.inserted), rest.after.queue, rest.due) == (4, (), None)


@pytest.mark.parametrize(
    ("head", "event", "seconds"),
    [
        (IDLE, Begin(TURN), 10),
        (RUNNING, TakeOver("run-2"), 10),
        (IDLE, Enqueue(QUEUED), 2),
        (replace(RUNNING, queue=(QUEUED,)), End("run", ANSWER), 2),
        (WAITING, PartReply(WAITING_ANSWER), 24 * 3600),
        (RUNNING, End("run", ANSWER), None),
        (RUNNING, Erase(), None),
    ],
)
def test_a_session_is_due_when_somebody_may_have_to_act(head: SessionHead, event: Event, seconds: int | None) -> None:
    due = transition(head, event, NOW).due
    assert due == (None if seconds is None else NOW + timedelta(seconds=seconds))


def test_a_turn_is_dead_a_lease_after_its_last_sign_of_life() -> None:
    for last, age, dead in ((None, 10, False), (None, 11, True), (6, 16, False), (6, 17, True), (-60, 10, False)):
        sign = None if last is None else NOW + timedelta(seconds=last)
        assert is_dead(TURN, sign, NOW + timedelta(seconds=age), 10.0) is dead


# Decisions


def loaded(head: SessionHead, earlier: SessionMessage | None = None, **known: Any) -> SessionState:
    return SessionState(head, head.leaf, earlier=earlier, **{"question": QUESTION, "answer": ANSWER, **known})


NEW, KNOWN, EDIT = Query("Next", "m2"), Query("Hi", "m1"), Query("Edited", "m1")
CUT = replace(ANSWER, status="interrupted")
REGENERATE = Query("", "m1", regenerate=True)
REGENERATED = replace(RUNNING, turn=replace(TURN, id="a2", message=None, replaces="a1"))
EMPTY = SessionState()
IN_LINE = replace(IDLE, queue=(QUEUED,))
STEERED = replace(RUNNING, turn=replace(TURN, joined=(STEERING,)))
LAST = replace(IDLE, leaf=Place(order=2 * MAX_TURNS + 1))
LONGER = replace(IDLE, leaf=Place("a2", 5))
BESIDE = replace(IDLE, leaf=Place("x", 3, 1, ((0, 2),)))
HELD = loaded(WAITING, answer=WAITING_ANSWER, waiting=WAITING_ANSWER)
JOINED = replace(ANSWER, parts=[SteeringPart(message_id="s", text="Shorter")])


@pytest.mark.parametrize(
    ("session", "query", "options", "expected"),
    [
        # a new message
        (EMPTY, NEW, {}, "Run"),
        (EMPTY, NEW, {"background": True}, "GetInLine"),
        (loaded(IDLE), NEW, {}, "Run"),
        (loaded(IN_LINE), NEW, {}, "GetInLine"),
        (loaded(IN_LINE), NEW, {"limit": 1}, QueueFull),
        (loaded(RUNNING), NEW, {}, TurnInProgress),
        (loaded(RUNNING), NEW, {"dead": True}, "GetInLine"),
        *((loaded(RUNNING), replace(NEW, busy=busy), {}, "GetInLine") for busy in ("queue", "steer", "interrupt")),
        (HELD, NEW, {}, "Run"),
        (replace(HELD, head=replace(WAITING, queue=(QUEUED,))), NEW, {}, "GetInLine"),
        (loaded(LAST), NEW, {}, InvalidRequest),
        # a message that is known
        (loaded(RUNNING), KNOWN, {}, "Follow"),
        (loaded(RUNNING), KNOWN, {"dead": True}, "GoOn"),
        (loaded(STEERED), Query("Shorter", "s"), {}, "Follow"),
        (loaded(IN_LINE), Query("Next", "q"), {}, "WaitInLine"),
        (loaded(IDLE, QUESTION), KNOWN, {}, "Replay"),
        (loaded(LONGER, QUESTION, answer=CUT), KNOWN, {}, "Replay"),
        (loaded(BESIDE, QUESTION, answer=CUT), KNOWN, {}, "Run"),
        (replace(loaded(BESIDE, QUESTION, answer=CUT), head=RUNNING), KNOWN, {}, "Follow"),
        (loaded(IDLE, QUESTION, answer=CUT), KNOWN, {}, "Run"),
        (loaded(IDLE, QUESTION, answer=CUT), KNOWN, {"background": True}, NotRegenerable),
        (loaded(IDLE, ANSWER), Query("Hi", "a1"), {}, InvalidRequest),
        (loaded(REGENERATED, QUESTION), KNOWN, {}, "Follow"),
        (loaded(IDLE, JOINED), Query("Shorter", "s"), {}, "Replay"),
        # an edit
        (loaded(IDLE, QUESTION), EDIT, {}, "Run"),
        (loaded(RUNNING, replace(QUESTION, id="m0", node="n0")), Query("Edited", "m0"), {}, TurnInProgress),
        (loaded(RUNNING), EDIT, {}, TurnInProgress),
        (loaded(RUNNING), replace(EDIT, busy="queue"), {}, TurnInProgress),
        (loaded(RUNNING), replace(EDIT, busy="interrupt"), {}, "Interrupt"),
        (loaded(IN_LINE), Query("Edited", "q"), {}, TurnInProgress),
        (loaded(IDLE, JOINED), Query("Edited", "s"), {}, InvalidRequest),
        # another answer
        (loaded(IDLE, QUESTION), REGENERATE, {}, "Run"),
        (loaded(IDLE, None), REGENERATE, {}, NotFound),
        (loaded(IDLE, None), replace(REGENERATE, text="Hi"), {}, "Run"),
        (EMPTY, Query("", "", regenerate=True), {}, NotFound),
        (loaded(LONGER, QUESTION), REGENERATE, {}, "Run"),
        (loaded(IDLE, ANSWER), Query(regenerate=True, replaces="a1"), {}, "Run"),
        (loaded(RUNNING), REGENERATE, {}, TurnInProgress),
        (loaded(RUNNING), replace(REGENERATE, busy="interrupt"), {}, "Interrupt"),
        (loaded(REGENERATED, QUESTION), REGENERATE, {}, "Follow"),
        (loaded(REGENERATED, QUESTION), REGENERATE, {"dead": True}, "GoOn"),
        (loaded(REGENERATED, QUESTION), replace(REGENERATE, replaces="a1"), {}, "Follow"),
        (loaded(REGENERATED, QUESTION), replace(REGENERATE, replaces="a0"), {}, TurnInProgress),
        (loaded(REGENERATED, QUESTION), Query(regenerate=True, replaces=QUESTION.node), {}, "Follow"),
        (
            loaded(IDLE, QUESTION, answer=replace(ANSWER, metadata={"replaces": "a0"})),
            replace(REGENERATE, replaces="a0"),
            {},
            "Replay",
        ),
    ],
)
def test_decide_says_what_a_request_does(
    session: SessionState, query: Query, options: dict[str, Any], expected: str | type[Exception]
) -> None:
    decision = decide(session, query, now=NOW, **options)
    if isinstance(decision, decisions.Refuse):
        assert not isinstance(expected, str)
        assert type(decision.error) is expected
    else:
        assert type(decision).__name__ == expected


@pytest.mark.parametrize(("now", "reason"), [(NOW, "unanswered"), (LATER, "expired")])
def test_a_message_in_place_of_a_reply_closes_the_waiting_answer(now: datetime, reason: str) -> None:
    decision = decide(HELD, NEW, now=now)
    assert isinstance(decision, decisions.Run)
    assert decision.closes is not None
    assert (decision.closes.status, decision.closes.metadata["stopReason"]) == ("cancelled", reason)
    assert decision.closes.pending == []
