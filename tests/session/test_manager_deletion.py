"""The promises of `SessionManager` for names and the deletion of sessions and users."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from omniagent.errors import SessionErased, TurnLost
from omniagent.session.manager import SessionHead, SessionManager
from tests.session.sessions import Open, converse, reply, start, stored_ids, summary


async def test_a_name_that_was_chosen_meanwhile_stands(session: SessionManager) -> None:
    assert not await session.rename("No session", was=None)
    await converse(session, 1)
    assert await session.rename("By the model", was=None)
    assert not await session.rename("Too late", was=None)
    assert await session.rename("By hand", was="By the model")
    head = await session.head()
    assert head is not None
    assert head.name == "By hand"


async def test_a_marked_session_counts_as_gone(session: SessionManager) -> None:
    assert not await session.mark_erased()
    await converse(session, 3)
    await session.begin_turn(start(4))
    assert await session.mark_erased()
    assert await session.mark_erased(), "marked again by whoever repeats it"
    assert await session.head() is None
    assert (await session.load("question-1")).head == SessionHead()
    assert not await session.rename("x", was=None)
    assert not await session.add_summary(summary(1, 1))
    assert await session.repair_turn(reply(0, "answer-4", "interrupted")) is None
    for turn in (start(1, "other", message_id="new"), start(4, "other", again=True), start(5)):
        with pytest.raises(SessionErased):
            await session.begin_turn(turn)
    with pytest.raises(TurnLost):
        await session.finish_turn(reply(4))


async def test_a_session_is_erased_in_pieces_and_its_id_is_free_again(session: SessionManager) -> None:
    await converse(session, 5)
    await session.add_summary(summary(1, 2))
    await session.mark_erased()
    pieces = 1
    while not await session.erase_some(3):
        pieces += 1
    assert pieces >= 3
    assert await session.erase_some(3), "once more changes nothing"
    await converse(session, 1)
    assert await session.erase_some(3), "a session that is not marked is left alone"
    assert await stored_ids(session) == ["question-1", "answer-1"]
    assert await session.latest_summary() is None


# Deleting a user


async def test_a_marked_user_begins_nothing_and_all_their_sessions_are_gone(open_session: Open) -> None:
    sessions = [open_session(name) for name in "abc"]
    admitted, late = open_session("admitted"), open_session("late")
    for session in sessions:
        await session.admit(9, "t")
        await converse(session, 1)
    await admitted.admit(9, "t")
    assert not await admitted.user_is_erased()
    assert not await admitted.mark_user_erased(2)
    assert await admitted.mark_user_erased(2), "repeated until all are marked"
    assert await admitted.user_is_erased()
    assert [await session.head() for session in sessions] == [None] * 3
    with pytest.raises(SessionErased):
        await late.admit(9, "t")
    with pytest.raises(SessionErased):
        await admitted.begin_turn(start(1))


async def test_a_user_is_forgotten_after_the_last_session_and_may_come_back(open_session: Open) -> None:
    session = open_session("a")
    for one in (session, open_session("b")):
        await one.admit(9, "t")
        await converse(one, 1)
    assert await session.mark_user_erased()
    assert not await session.forget_user(), "two sessions are left"
    found = await session.sessions_of_user()
    assert {one.key for one in found} == {session.key, open_session("b").key}
    assert [await one.erase_some() for one in found] == [True, True]
    assert await session.forget_user()
    assert await session.forget_user(), "once more changes nothing"
    assert not await session.user_is_erased()
    await session.admit(9, "t")
    await converse(session, 1)
    assert await session.forget_user() is False, "a user who is not marked is left alone"
    assert await stored_ids(session) == ["question-1", "answer-1"]


async def test_the_sessions_of_a_user_can_be_told_apart_by_their_age(open_session: Open) -> None:
    await converse(open_session("old"), 1)
    between = datetime.now(UTC) + timedelta(milliseconds=5)
    await asyncio.sleep(0.01)  # MongoDB keeps milliseconds
    await converse(open_session("new"), 1)
    [old] = await open_session().sessions_of_user(before=between)
    assert old.key == open_session("old").key
    assert len(await open_session().sessions_of_user()) == 2
    assert len(await open_session().sessions_of_user(1)) == 1
