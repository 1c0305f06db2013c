"""Every promise of `SessionManager`, kept by MongoDB and by the manager in memory alike."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from omniagent.errors import InvalidRequest, NotFound, SessionErased, StorageRejected
from omniagent.messages import CallRequest, Feedback, SteeringPart, StepPart, ToolPart
from omniagent.session.live import Place, QueuedMessage, SessionHead, SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.session.query import Query
from omniagent.turns.state import closed, transition
from omniagent.turns.state_events import Begin, Close, End, Enqueue, Erase, Event, Join, Reply, Switch, TakeOver, Wait
from tests.persistence.turns import (
    NOW,
    again,
    answer_id,
    answered_again,
    apply,
    asking,
    begin,
    converse,
    end,
    path_ids,
    question,
    reply,
    reply_again,
    summary,
    text,
    tip,
    turn,
)
from tests.session.sessions import Open

LATER = datetime(2100, 1, 1, tzinfo=UTC)
UP = Feedback(rating="up", text="Just what I needed: \U0001f44d")
REQUEST = CallRequest(id="r1", kind="approval", expires_at=LATER)
CALL = ToolPart(call_id="c1", name="refund", input={"order": "42"}, request=REQUEST)


def waiting(session: SessionManager) -> SessionMessage:
    return reply(1, "waiting", session=session, parts=[*text("Hm."), CALL])


async def stored(session: SessionManager, number: int) -> SessionMessage | None:
    """The stored answer of a turn."""
    return await session.node(answer_id(number, session))


# Reading


async def test_a_session_that_does_not_exist_is_empty(session: SessionManager) -> None:
    state = await session.load(asking(1))
    assert (state.head, state.turns, state.earlier, state.summary) == (SessionHead(), [], None, None)
    assert await session.head() is None
    assert await stored(session, 1) is None
    assert list(await session.find("question-1", at=Place(order=99))) == []
    assert list(await session.path(Place(order=99))) == []


async def test_load_returns_the_newest_turns_whatever_the_summary_covers(session: SessionManager) -> None:
    await converse(session, range(1, 7))
    assert await session.add_summary(summary(1, 5), await tip(session))
    state = await session.load(Query(message_id="question-6", regenerate=True))
    assert [turn.number for turn in state.turns] == [3, 4, 5, 6], "three and one more: the last may be answered again"
    assert [[message.text for message in turn.messages] for turn in state.turns][-1] == ["Question 6", "Answer 6"]
    assert all(turn.tokens > 0 for turn in state.turns)
    assert state.summary == summary(1, 5)
    assert (state.question, state.answer) == (question(6, session), reply(6, session=session))
    older = await session.load(asking(2))
    assert (older.earlier, older.answer) == (question(2, session), reply(2, session=session)), "older than the window"


async def test_the_question_of_a_running_turn_is_read_before_it_is_stored(session: SessionManager) -> None:
    await converse(session, [1])
    head = await begin(session, 2)
    state = await session.load(Query(regenerate=True))
    assert (state.head, state.question, state.answer) == (head, question(2, session), None)
    assert [turn.number for turn in state.turns] == [1, 2]
    assert (await session.load(asking(2))).earlier is None, "it is not history yet"
    assert list(await session.path(head.tip)) == [question(1, session), reply(1, session=session)]
    await end(session, 2)
    assert (await session.load(asking(2))).earlier == await session.node(question(2, session).node)
    assert (await session.load(asking(2))).earlier == question(2, session)


async def test_a_message_that_joined_an_answer_is_found_in_it(session: SessionManager) -> None:
    joined = SteeringPart(message_id="steer", text="Shorter")
    answer = reply(1, session=session, parts=[StepPart(), joined, *text("Ok.")])
    await begin(session, 1)
    await apply(session, End("run", answer))
    assert list(await session.find("steer", at=await tip(session), anywhere="steer")) == [answer]
    assert (await session.load(Query("Shorter", "steer"))).earlier == answer


async def test_a_path_is_read_in_order_from_a_turn_on_and_its_newest_only(session: SessionManager) -> None:
    await converse(session, range(1, 6))
    at = await tip(session)
    assert [message.turn_number for message in await session.path(at, first=4)] == [4, 4, 5, 5]
    assert [message.id for message in await session.path(at, limit=3)] == [
        answer_id(4, session),
        "question-5",
        answer_id(5, session),
    ]
    assert [message.turn_number for message in await session.path(at.up_to(2))] == [1, 1, 2, 2]


# Writing

QUEUED, STEERING = QueuedMessage("Next: ü", "q"), QueuedMessage("Shorter", "s", busy="steer")


def life(session: SessionManager) -> list[Event]:
    second = replace(question(2, session), id="q")
    return [
        Begin(turn(1, session)),
        Enqueue(STEERING),
        Enqueue(QUEUED),
        TakeOver("run-2"),
        Join("run-2", (STEERING,)),
        Wait("run-2", waiting(session)),
        Reply("run-3", waiting(session)),
        End("run-3", reply(1, session=session)),
        Begin(turn(2, session, message_id="q", message=second)),
        End("run", reply(2, session=session)),
        Begin(again(2, session)),
        End("run", reply_again(2, session)),
        Switch(reply(2, session=session).place),
        Erase(),
    ]


async def test_each_change_is_applied_once_however_often_it_is_written(session: SessionManager) -> None:
    head = SessionHead()
    for event in life(session):
        change = transition(head, event, NOW)
        stale = transition(head, event, NOW)
        assert [await session.write(change) for _ in range(2)] == [True, True], "the reply of the first was lost"
        if head.version:
            assert not await session.write(stale), f"{event} was decided from a session that has moved on"
        head = change.after
        assert await session.head(erased=True) == head
        if not head.is_erased:
            ids = await path_ids(session)
            assert len(set(ids)) == len(ids)
    assert head.is_erased


async def test_of_changes_at_the_same_moment_one_is_applied(open_session: Open) -> None:
    head, session = SessionHead(), open_session()
    for event in (Begin(turn(1, session)), Enqueue(QUEUED), End("run", reply(1, session=session))):
        changes = [transition(head, event, NOW) for _ in range(6)]
        written = await asyncio.gather(*(open_session().write(change) for change in changes))
        assert written.count(True) == 1
        head = changes[written.index(True)].after


async def test_a_change_of_a_session_that_does_not_exist_is_not_applied(session: SessionManager) -> None:
    assert not await session.write(transition(SessionHead(version=3), Enqueue(QUEUED), NOW))
    assert await session.head() is None


async def test_a_second_answer_is_a_sibling_in_a_branch_of_its_own(session: SessionManager) -> None:
    await converse(session, [1])
    await apply(session, Begin(again(1, session)))
    assert await path_ids(session) == ["question-1"], "it is being answered"
    head = await apply(session, End("run", reply_again(1, session)))
    assert (head.leaf, head.branches) == (reply_again(1, session).place, 1)
    assert list(await session.path(head.leaf)) == [question(1, session), reply_again(1, session)]
    assert await stored(session, 1) == reply(1, session=session), "nothing is replaced"
    parent = question(1, session).node
    assert [child.node for child in (await session.children(parent))[parent]] == [
        answer_id(1, session),
        head.leaf.node,
    ]


async def test_the_tree_lists_all_branches_with_each_message_after_its_parent(session: SessionManager) -> None:
    await converse(session, [1, 2])
    head = await answered_again(session, 1)
    first = await session.tree(limit=2)
    rest = await session.tree(limit=9, after=first[-1].place)
    assert [*first, *rest[:2]] == [
        question(1, session),
        reply(1, session=session),
        question(2, session),
        reply(2, session=session),
    ]
    assert [(message.node, message.parent) for message in rest[2:]] == [(head.leaf.node, question(1, session).node)]


async def test_the_end_of_a_place_is_that_of_the_newest_branch_that_leads_from_it(session: SessionManager) -> None:
    await converse(session, [1, 2])
    head = await answered_again(session, 1)
    assert await session.end_of(question(1, session).place) == head.leaf
    assert await session.end_of(reply(1, session=session).place) == reply(2, session=session).place
    assert await session.end_of(head.leaf) == head.leaf


async def test_an_id_is_found_on_its_path_only(session: SessionManager) -> None:
    await converse(session, [1, 2])
    head = await answered_again(session, 1)
    assert list(await session.find("question-2", at=head.leaf)) == []
    assert list(await session.find("question-2", at=reply(2, session=session).place)) == [question(2, session)]
    assert list(await session.find(question(2, session).node)) == [question(2, session)], "its node anywhere"
    assert await session.find("question-2", at=head.leaf, anywhere="question-2") == [question(2, session)]
    assert await session.find("question-3", at=head.leaf, anywhere="question-3") == []


async def test_nothing_of_a_change_is_applied_if_an_answer_cannot_be_stored(session: SessionManager) -> None:
    head = await begin(session, 1)
    with pytest.raises(StorageRejected):
        await session.write(transition(head, End("run", reply(1, session=session, parts=text("x" * 17_000_000))), NOW))
    assert await session.head() == head
    assert await path_ids(session) == []
    await end(session, 1)


async def test_open_calls_are_closed_when_stored_but_requests_wait(session: SessionManager) -> None:
    await begin(session, 1)
    asked = waiting(session)
    head = await apply(session, Wait("run", replace(asked, parts=[*asked.parts, ToolPart(call_id="c2", name="add")])))
    assert head.waiting is not None
    assert head.waiting.until == LATER
    answer = await stored(session, 1)
    assert answer is not None
    assert [part.call_id for part in answer.pending] == ["c1"]
    assert [part.done for part in answer.parts if isinstance(part, ToolPart)] == [False, True]
    await apply(session, Close(closed(answer, "expired")))
    answer = await stored(session, 1)
    assert answer is not None
    assert (answer.status, answer.pending) == ("cancelled", [])


async def test_a_name_chosen_meanwhile_is_kept(session: SessionManager) -> None:
    assert not await session.rename("No session", was=None)
    head = await begin(session, 1)
    assert await session.rename("By the model", was=None)
    assert not await session.rename("Too late", was=None)
    assert await session.write(transition(head, End("run", reply(1, session=session)), NOW)), (
        "a name is no other version"
    )
    assert await session.rename("By hand", was="By the model")
    named = await session.head()
    assert named is not None
    assert named.name == "By hand"


# Feedback


async def test_feedback_is_stored_in_its_answer_until_it_is_removed(session: SessionManager) -> None:
    await converse(session, [1, 2])
    for feedback in (UP, Feedback(rating="down"), Feedback(text="Hm."), None, None):
        rated = await session.rate(answer_id(1, session), feedback)
        assert (rated.id, rated.turn_number) == (answer_id(1, session), 1)
        answer = await stored(session, 1)
        assert answer is not None
        given = answer.feedback and (answer.feedback.rating, answer.feedback.text)
        assert given == (feedback and (feedback.rating, feedback.text))
        assert answer == replace(reply(1, session=session), feedback=answer.feedback), (
            "nothing else of the answer has changed"
        )
    assert await stored(session, 2) == reply(2, session=session)


async def test_only_answers_that_exist_can_be_rated(session: SessionManager) -> None:
    with pytest.raises(NotFound):
        await session.rate(answer_id(1, session), UP)
    await converse(session, [1])
    with pytest.raises(NotFound):
        await session.rate(answer_id(2, session), UP)
    with pytest.raises(InvalidRequest):
        await session.rate("question-1", UP)
    await begin(session, 2)
    with pytest.raises(InvalidRequest):
        await session.rate("question-2", UP)
    await apply(session, Erase())
    with pytest.raises(NotFound):
        await session.rate(answer_id(1, session), UP)


async def test_an_answer_that_goes_on_keeps_its_feedback_and_another_has_none(session: SessionManager) -> None:
    await begin(session, 1)
    await apply(session, Wait("run", waiting(session)))
    rated = await session.rate(answer_id(1, session), UP)
    await apply(session, Reply("run-2", waiting(session)))
    await apply(session, End("run-2", reply(1, session=session)))
    assert await stored(session, 1) == replace(reply(1, session=session), feedback=rated.feedback)
    await apply(session, Begin(again(1, session)))
    await apply(session, End("run", replace(reply_again(1, session), feedback=rated.feedback)))
    assert await session.node(again(1, session).id) == reply_again(1, session)


# Sessions of a user, and of all users


async def populate(open_session: Open) -> None:
    """Open a session of each state for one user."""
    await begin(open_session("running", category="gold"), 1)  # due after a lease of 10 s
    await apply(open_session("queued"), Enqueue(QUEUED))  # after 2 s
    await converse(open_session("idle"), [1])
    await begin(open_session("waiting"), 1)
    await apply(open_session("waiting"), Wait("run", waiting(open_session("waiting"))))  # when its request expires
    await begin(open_session("erased"), 1)
    await apply(open_session("erased"), Erase())


async def test_busy_sessions_run_a_turn_or_have_messages_in_line(open_session: Open) -> None:
    session = open_session()
    await begin(session, 1)
    await populate(open_session)
    running = turn(1, open_session("running"))
    busy = {key: live and live.journal for key, live in await session.busy_sessions()}
    assert busy == {open_session("running").key: running.journal, open_session("queued").key: None}
    siblings = [await session.sibling(key).head() for key in sorted(busy)]
    assert [head is not None and head.queue for head in siblings] == [(QUEUED,), ()]


async def test_due_returns_sessions_that_may_need_somebody_the_longest_due_first(open_session: Open) -> None:
    session = open_session()
    await populate(open_session)

    async def due(now: datetime) -> list[tuple[str, str | None]]:
        found = await session.store.due(now, 100_000)
        return [(each.session_id, each.category) for each in found if each.user == session.user]

    assert await due(NOW) == []
    assert await due(NOW + timedelta(seconds=3)) == [("queued", None)]
    assert await due(NOW + timedelta(days=1)) == [("queued", None), ("running", "gold")]
    assert await due(LATER) == [("queued", None), ("running", "gold"), ("waiting", None)]
    assert len(await session.store.due(LATER, 2)) == 2


async def test_an_address_opens_the_session_again(open_session: Open) -> None:
    session = open_session("a", category="gold")
    await begin(session, 1)
    address = await session.store.address_of(session.key)
    assert address is not None
    assert (address.user, address.session_id, address.category) == (session.user, "a", "gold")
    await end(open_session("a"), 1)
    assert await session.store.address_of(session.key) == address, "another process does not know the category"
    assert await session.store.address_of("nobody:a") is None


async def test_sessions_are_listed_by_their_last_use(open_session: Open) -> None:
    session = open_session("a")
    await converse(session, [1])
    await begin(open_session("b"), 1)
    await apply(open_session("b"), Wait("run", waiting(open_session("b"))))
    await begin(open_session("erased"), 1)
    await apply(open_session("erased"), Erase())
    listed = await session.store.list_sessions(session.user)
    assert [(each.session_id, each.waiting_until) for each in listed] == [("b", LATER), ("a", None)]
    assert await session.store.list_sessions(session.user, before=listed[0]) == listed[1:]


# Deletion


async def test_an_erased_session_is_invisible_and_its_id_is_refused(session: SessionManager) -> None:
    await converse(session, [1, 2])
    head = await begin(session, 3)
    await apply(session, Erase())
    assert await session.head() is None
    assert (await session.load(asking(1))).head == SessionHead()
    assert not await session.rename("x", was=None)
    assert not await session.add_summary(summary(1, 1), head.tip)
    assert not await session.write(transition(head, End("run", reply(3, session=session)), NOW))
    with pytest.raises(SessionErased):
        await begin(session, 1)


async def test_a_session_is_erased_in_pieces_and_its_id_is_free_again(session: SessionManager) -> None:
    await converse(session, range(1, 6))
    await session.add_summary(summary(1, 2), await tip(session))
    await apply(session, Erase())
    pieces = 1
    while not await session.store.erase_some(session.key, 3):
        pieces += 1
    assert pieces >= 3
    assert await session.store.erase_some(session.key, 3), "once more changes nothing"
    await converse(session, [1])
    assert await session.store.erase_some(session.key, 3), "a session that is not marked is left alone"
    assert await path_ids(session) == ["question-1", answer_id(1, session)]
    assert await session.latest_summary(await tip(session)) is None


async def test_nothing_of_a_user_begins_while_they_are_deleted(open_session: Open) -> None:
    sessions = [open_session(name) for name in "abc"]
    heads = [await begin(session, 1) for session in sessions]
    store, user_id = sessions[0].store, sessions[0].user_id
    assert not await store.user_is_erased(user_id)
    assert not await store.mark_user_erased(user_id, 2)
    assert await store.mark_user_erased(user_id, 2), "repeated until all are marked"
    assert await store.user_is_erased(user_id)
    assert [await session.head() for session in sessions] == [None] * 3
    assert not await sessions[0].write(transition(heads[0], End("run", reply(1, session=sessions[0])), NOW))
    with pytest.raises(SessionErased):
        await begin(open_session("late"), 1)
    assert await open_session("late").head(erased=True) is None
    assert [each for each in await store.due(LATER, 100_000) if each.user == sessions[0].user] == []
