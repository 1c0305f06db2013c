"""The promises of `SessionManager` for turns that wait."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from omniagent.errors import StorageConflict, TurnLost
from omniagent.messages import CallRequest, ToolPart, close_open_calls
from omniagent.session.manager import SessionManager, SessionMessage
from tests.session.sessions import LATER, Open, reply, start, stored_ids, text


def asking(call_id: str = "c1", **request: Any) -> ToolPart:
    asked = CallRequest(id=f"r-{call_id}", kind="approval", expires_at=LATER, **request)
    return ToolPart(call_id=call_id, name="refund", input={"order": "42"}, request=asked)


async def wait(session: SessionManager) -> SessionMessage:
    """A first turn that waits for two approvals."""
    await session.begin_turn(start(1))
    return await session.finish_turn(reply(1, status="waiting", parts=[*text("Hm."), asking("c1"), asking("c2")]))


async def test_a_waiting_answer_keeps_its_open_calls_and_the_session_is_free(session: SessionManager) -> None:
    stored = await wait(session)
    state = await session.load()
    assert state.answer == stored
    assert [part.call_id for part in stored.pending] == ["c1", "c2"]
    assert (state.head.active_turn_id, state.head.waiting_until) == (None, LATER)


async def test_a_waiting_answer_is_changed_only_as_it_was_seen(session: SessionManager) -> None:
    stored = await wait(session)
    answered = replace(stored, parts=[*text("Hm."), asking("c1", approved=True), asking("c2")], turn_id="x.answer-1")
    with pytest.raises(StorageConflict):
        await session.change_waiting(answered, seen_turn_id="somebody else")
    await session.change_waiting(answered, seen_turn_id="answer-1")
    await session.change_waiting(answered, seen_turn_id="answer-1")  # its outcome was unknown
    state = await session.load()
    assert state.answer == answered
    assert (state.head.latest_turn_id, state.head.waiting_until) == ("x.answer-1", LATER)
    late = replace(answered, turn_id="y.answer-1")
    with pytest.raises(StorageConflict):
        await session.change_waiting(late, seen_turn_id="answer-1")


async def test_a_turn_goes_on_with_its_waiting_answer_in_one_write(session: SessionManager) -> None:
    stored = await wait(session)
    answered = replace(stored, parts=[*text("Hm."), asking("c1", approved=True), asking("c2", approved=True)])
    again = start(1, "x.answer-1", again=True, waited=answered, seen_turn_id="answer-1")
    with pytest.raises(StorageConflict):
        await session.begin_turn(replace(again, seen_turn_id="somebody else"))
    assert (await session.load()).answer == stored
    await session.begin_turn(again)
    state = await session.load()
    assert state.answer == answered
    assert (state.head.active_turn_id, state.head.waiting_until) == ("x.answer-1", None)
    with pytest.raises(StorageConflict):
        await session.change_waiting(replace(stored, turn_id="y.answer-1"), seen_turn_id="x.answer-1")
    whole = reply(1, turn_id="x.answer-1", id="answer-1")
    assert await session.finish_turn(whole) == whole
    assert await stored_ids(session) == ["question-1", "answer-1"]


async def test_of_runs_that_go_on_at_the_same_moment_one_does(open_session: Open) -> None:
    stored = await wait(open_session())
    starts = [start(1, f"{n}.answer-1", again=True, waited=stored, seen_turn_id="answer-1") for n in range(8)]
    begun = await asyncio.gather(*(open_session().begin_turn(each) for each in starts), return_exceptions=True)
    assert sum(each is None for each in begun) == 1


async def test_a_dead_run_of_an_answer_is_closed_in_its_place(session: SessionManager) -> None:
    stored = await wait(session)
    await session.begin_turn(start(1, "x.answer-1", again=True, waited=stored, seen_turn_id="answer-1"))
    assert await session.repair_turn(reply(1, status="interrupted")) is None
    dead = reply(1, status="interrupted", turn_id="x.answer-1", id="answer-1")
    assert await session.repair_turn(dead) == dead
    whole = reply(1, turn_id="x.answer-1", id="answer-1")
    assert await session.finish_turn(whole) == whole


async def test_a_run_of_an_answer_that_another_process_has_taken_over_is_lost(session: SessionManager) -> None:
    """The waiting answer has the same id, but it is not what the run would store."""
    stored = await wait(session)
    going_on = start(1, "x.answer-1", again=True, waited=stored, seen_turn_id="answer-1")
    await session.begin_turn(going_on)
    await session.begin_turn(replace(going_on, attempt=1))
    whole = reply(1, turn_id="x.answer-1", id="answer-1")
    with pytest.raises(TurnLost):
        await session.finish_turn(replace(whole, parts=text("From the dead")))
    assert await session.answer(1) == stored
    assert await session.finish_turn(whole, attempt=1) == whole


async def test_the_next_turn_closes_a_waiting_answer_as_it_begins(session: SessionManager) -> None:
    stored = await wait(session)
    closed = replace(stored, status="cancelled", parts=close_open_calls(stored.parts))
    await session.begin_turn(start(2, waited=closed, seen_turn_id="answer-1"))
    assert await session.answer(1) == closed
    state = await session.load()
    assert (state.head.latest_turn_number, state.head.active_turn_id) == (2, "answer-2")
    assert state.head.waiting_until is None


async def test_a_regeneration_that_shows_nothing_leaves_a_turn_waiting(session: SessionManager) -> None:
    stored = await wait(session)
    await session.begin_turn(start(1, "again", again=True))
    assert await session.finish_turn(reply(1, "again", status="cancelled", parts=[])) == stored
    head = await session.head()
    assert head is not None
    assert head.waiting_until == LATER
