"""Every promise of `SessionManager`, kept by MongoDB and by the manager in memory alike."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from omniagent.errors import InvalidRequest, NotFound, StorageConflict, StorageRejected, TurnLost
from omniagent.messages import (
    DataPart,
    Feedback,
    Part,
    ReasoningPart,
    Status,
    SteeringPart,
    StepPart,
    TextPart,
    ToolPart,
    Usage,
)
from omniagent.persistence import mongo_session
from omniagent.session import in_memory
from omniagent.session.manager import SessionHead, SessionManager, SessionMessage, slot_of
from tests.session.sessions import Open, converse, reply, start, stored_ids, summary, text

# Reading


async def test_a_session_that_does_not_exist_is_empty(session: SessionManager) -> None:
    state = await session.load("question-1")
    assert (state.head, state.turns, state.earlier, state.summary) == (SessionHead(), (), None, None)
    assert await session.head() is None
    assert await session.answer(1) is None
    assert [turns async for turns in session.past_turns(1, 9)] == []


def test_an_id_that_is_no_plain_token_is_refused(open_session: Open) -> None:
    with pytest.raises(InvalidRequest):
        open_session("a:b")


async def test_the_state_holds_the_newest_turns_whatever_the_summary_covers(session: SessionManager) -> None:
    await converse(session, 6)
    assert await session.add_summary(summary(1, 5))
    state = await session.load("question-2")
    assert [turn.number for turn in state.turns] == [3, 4, 5, 6], "three and one more: the last may be answered again"
    assert [[message.text for message in turn.messages] for turn in state.turns][-1] == ["Question 6", "Answer 6"]
    assert all(turn.tokens > 0 for turn in state.turns)
    assert state.summary == summary(1, 5)
    assert state.summarized_to == 5
    assert (state.question, state.answer) == (
        SessionMessage("question-6", "user", 6, text("Question 6")),
        reply(6),
    )
    assert state.earlier == SessionMessage("question-2", "user", 2, text("Question 2")), "older than the window"


async def test_the_head_is_the_session_without_its_messages(session: SessionManager) -> None:
    await converse(session, 2)
    await session.begin_turn(start(3, "running"))
    assert await session.rename("Trip", was=None)
    assert await session.head() == SessionHead(3, "running", "Trip")
    state = await session.load()
    assert state.head == SessionHead(3, "running", "Trip")
    assert (state.question and state.question.id, state.answer) == ("question-3", None)


async def test_an_answer_comes_back_as_it_was_stored(session: SessionManager) -> None:
    parts: list[Part] = [
        StepPart(),
        ReasoningPart(text="Hm", provider_data={"$ref": "a", "$id": 1, "x.y": [{}]}),
        ToolPart(call_id="c", name="add", input={"a": 2**80, "$b": {"$ref": "x", "$id": "y"}}, output=[1.5], done=True),
        DataPart(name="map", data={"deep": {"er": None}}, id="d"),
        TextPart(text="Done \U0001f600"),
    ]
    answer = reply(1, parts=parts, usage=Usage(1, 2, 3, 4, True), metadata={"a.b": {"$ref": "c", "$id": "d"}})
    await session.begin_turn(start(1))
    assert await session.finish_turn(answer) == answer
    assert await session.answer(1) == answer


async def test_past_turns_come_in_order_and_in_pieces(session: SessionManager, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mongo_session, in_memory):
        monkeypatch.setattr(module, "TURNS_PER_READ", 3)
    await converse(session, 9)
    pieces = [[turn.number for turn in turns] async for turns in session.past_turns(2, 8)]
    assert pieces == [[2, 3, 4], [5, 6, 7], [8]]


# Slots


async def test_a_slot_is_taken_once_and_given_back(open_session: Open) -> None:
    first, second, third = (open_session(name) for name in ("a", "b", "c"))
    slots = [slot_of(session.key, "t") for session in (first, second, third)]
    assert not await first.admit(2, "t")
    assert not await first.admit(2, "t"), "the same turn again"
    assert not await second.admit(2, "t")
    assert sorted(await third.admit(2, "t")) == sorted(slots[:2])
    await third.withdraw(slots[0], slots[2])
    assert not await third.admit(2, "t")
    assert sorted(await first.admit(2, "t")) == sorted(slots[1:])


async def test_the_next_turn_of_a_session_takes_its_slot_over_from_one_that_comes_late(open_session: Open) -> None:
    first, second = open_session("a"), open_session("b")
    assert not await first.admit(1, "dead")
    assert not await first.admit(1, "next")
    await second.withdraw(slot_of(first.key, "dead"))
    assert await second.admit(1, "t") == [slot_of(first.key, "next")]


async def test_of_many_at_the_same_moment_no_more_than_the_limit_are_admitted(open_session: Open) -> None:
    sessions = [open_session(f"s{number}") for number in range(12)]
    refusals = await asyncio.gather(*(session.admit(5, "t") for session in sessions))
    assert sum(not holders for holders in refusals) == 5
    admitted = {slot_of(session.key, "t") for session, holders in zip(sessions, refusals, strict=True) if not holders}
    assert all(set(holders) == admitted for holders in refusals if holders)


# Beginning


async def test_a_turn_begins_only_from_the_state_it_was_planned_from(session: SessionManager) -> None:
    for wrong in (start(2), start(1, again=True)):
        with pytest.raises(StorageConflict):
            await session.begin_turn(wrong)
    assert await session.head() is None, "a refused turn leaves nothing"
    await session.begin_turn(start(1))
    for wrong in (start(1, "other", message_id="other"), start(2), start(1, "other", again=True)):
        with pytest.raises(StorageConflict):
            await session.begin_turn(wrong)
    await session.finish_turn(reply(1))
    twice = start(2, message_id="question-1", seen_turn_id=None)  # by somebody who has not looked
    for wrong in (start(1), start(3), twice, start(2, again=True)):
        with pytest.raises(StorageConflict):
            await session.begin_turn(wrong)
    assert await session.head() == SessionHead(1)
    assert await stored_ids(session) == ["question-1", "answer-1"]


async def test_of_turns_that_begin_at_the_same_moment_one_does(open_session: Open) -> None:
    turns = [start(1, f"turn-{number}", message_id=f"message-{number}") for number in range(6)]
    outcomes = await asyncio.gather(*(open_session().begin_turn(turn) for turn in turns), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(type(None)) == 1
    assert all(isinstance(outcome, StorageConflict) for outcome in outcomes if outcome is not None)
    head = await open_session().head()
    assert head is not None
    assert head.latest_turn_number == 1


async def test_a_turn_that_has_begun_begins_again_when_its_outcome_was_unknown(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    await session.begin_turn(start(1))
    assert await session.head() == SessionHead(1, "answer-1")


async def test_answering_again_drops_the_summaries_that_cover_the_turn(session: SessionManager) -> None:
    await converse(session, 5)
    for draft in (False, True):
        assert await session.add_summary(summary(1, 2), draft=draft)
        assert await session.add_summary(summary(3, 4), draft=draft)
    await session.begin_turn(start(5, "again", again=True))
    assert await session.latest_summary() == summary(3, 4)
    await session.finish_turn(reply(5, "again"))
    assert await stored_ids(session) == ["question-5", "again"]


# Finishing


async def test_an_open_tool_call_is_closed_when_it_is_stored(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    stored = await session.finish_turn(reply(1, parts=[ToolPart(call_id="c", name="add")]))
    assert [part.done for part in stored.parts if isinstance(part, ToolPart)] == [True]
    assert await session.answer(1) == stored


@pytest.mark.parametrize("status", ["complete", "cancelled", "failed"])
async def test_an_answer_stored_twice_is_stored_once(session: SessionManager, status: Status) -> None:
    await session.begin_turn(start(1))
    answer = reply(1, status=status)
    assert await session.finish_turn(answer) == answer
    assert await session.finish_turn(answer) == answer, "the outcome of the first attempt was unknown"
    await session.begin_turn(start(2))
    assert await session.finish_turn(answer) == answer, "also after the next turn began"


@pytest.mark.parametrize("parts", [[], [StepPart()]])
async def test_an_answer_that_shows_nothing_leaves_the_previous_one(
    session: SessionManager, parts: Sequence[Part]
) -> None:
    await converse(session, 1)
    await session.begin_turn(start(1, "again", again=True))
    nothing = reply(1, "again", "cancelled", parts=parts)
    assert await session.finish_turn(nothing) == reply(1)
    assert await session.finish_turn(nothing) == reply(1), "the same when the outcome was unknown"
    assert await session.head() == SessionHead(1)


async def test_the_first_answer_of_a_turn_is_stored_even_if_it_shows_nothing(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    nothing = reply(1, status="cancelled", parts=[])
    assert await session.finish_turn(nothing) == nothing
    assert await session.answer(1) == nothing


async def test_a_turn_that_never_began_is_lost(session: SessionManager) -> None:
    await converse(session, 1)
    with pytest.raises(TurnLost):
        await session.finish_turn(reply(1, "never"))


async def test_an_answer_that_cannot_be_stored_is_rejected_and_the_turn_still_runs(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    with pytest.raises(StorageRejected):
        await session.finish_turn(reply(1, parts=text("x" * 17_000_000)))
    assert await session.head() == SessionHead(1, "answer-1")
    assert await session.finish_turn(reply(1)) == reply(1)


# Feedback

UP = Feedback(rating="up", text="Just what I needed: \U0001f44d")


async def test_feedback_is_kept_in_its_answer_until_it_is_taken_back(session: SessionManager) -> None:
    await converse(session, 2)
    for feedback in (UP, Feedback(rating="down"), Feedback(text="Hm."), None, None):
        rated = await session.rate("answer-1", feedback)
        assert (rated.id, rated.turn_number) == ("answer-1", 1)
        answer = await session.answer(1)
        assert answer is not None
        stored = answer.feedback and (answer.feedback.rating, answer.feedback.text)
        assert stored == (feedback and (feedback.rating, feedback.text))
        assert answer == replace(reply(1), feedback=answer.feedback), "nothing else of the answer has changed"
    assert await session.answer(2) == reply(2)


async def test_only_answers_that_exist_can_be_rated(session: SessionManager) -> None:
    with pytest.raises(NotFound):
        await session.rate("answer-1", UP)
    await converse(session, 1)
    with pytest.raises(NotFound):
        await session.rate("answer-2", UP)
    with pytest.raises(InvalidRequest):
        await session.rate("question-1", UP)
    await session.mark_erased()
    with pytest.raises(NotFound):
        await session.rate("answer-1", UP)


async def test_another_answer_has_no_feedback_and_the_same_one_keeps_it(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    await session.repair_turn(reply(0, "answer-1", "interrupted", parts=text("Ans")))
    await session.rate("answer-1", UP)
    assert (await session.finish_turn(reply(1))).feedback is not None
    await session.begin_turn(start(1, "again", again=True))
    await session.finish_turn(reply(1, "again"))
    answer = await session.answer(1)
    assert answer is not None
    assert answer.feedback is None


# Repairing


async def test_a_dead_turn_is_closed_with_what_it_had_shown(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    shown = reply(0, "answer-1", "interrupted", parts=text("Ans"))
    repaired = await session.repair_turn(shown)
    assert repaired == replace(shown, turn_number=1)
    assert await session.answer(1) == repaired
    assert await session.head() == SessionHead(1)
    assert await session.repair_turn(shown) is None, "it is closed"


async def test_a_repair_of_another_turn_does_nothing(session: SessionManager) -> None:
    assert await session.repair_turn(reply(0, "x", "interrupted")) is None
    await session.begin_turn(start(1))
    assert await session.repair_turn(reply(0, "x", "interrupted")) is None
    assert await session.head() == SessionHead(1, "answer-1")


async def test_a_dead_regeneration_that_showed_nothing_leaves_the_previous_answer(session: SessionManager) -> None:
    await converse(session, 1)
    await session.begin_turn(start(1, "again", again=True))
    assert await session.repair_turn(reply(0, "again", "interrupted", parts=[StepPart()])) == reply(1)
    assert await stored_ids(session) == ["question-1", "answer-1"]


async def test_a_dead_regeneration_that_showed_something_replaces_the_previous_answer(session: SessionManager) -> None:
    await converse(session, 1)
    await session.begin_turn(start(1, "again", again=True))
    await session.repair_turn(reply(0, "again", "interrupted", parts=text("Half")))
    assert await stored_ids(session) == ["question-1", "again"]


async def test_a_whole_answer_replaces_the_interrupted_one_of_its_turn(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    await session.repair_turn(reply(0, "answer-1", "interrupted", parts=text("Ans")))
    assert await session.finish_turn(reply(1)) == reply(1)
    assert await session.answer(1) == reply(1)


async def test_a_whole_answer_comes_back_after_a_repair_that_kept_the_previous_one(session: SessionManager) -> None:
    await converse(session, 1)
    await session.begin_turn(start(1, "again", again=True))
    await session.repair_turn(reply(0, "again", "interrupted", parts=[]))
    assert await session.finish_turn(reply(1, "again")) == reply(1, "again")
    assert await stored_ids(session) == ["question-1", "again"]


async def test_an_answer_whose_turn_was_answered_again_is_lost(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    await session.repair_turn(reply(0, "answer-1", "interrupted", parts=text("Ans")))
    await session.begin_turn(start(1, "again", again=True))
    with pytest.raises(TurnLost):
        await session.finish_turn(reply(1))
    await session.finish_turn(reply(1, "again"))
    with pytest.raises(TurnLost):
        await session.finish_turn(reply(1))
    assert await session.answer(1) == reply(1, "again")


async def test_an_answer_whose_session_went_on_is_lost(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    await session.repair_turn(reply(0, "answer-1", "interrupted", parts=text("Ans")))
    await session.begin_turn(start(2))
    with pytest.raises(TurnLost):
        await session.finish_turn(reply(1))
    repaired = await session.answer(1)
    assert repaired is not None
    assert repaired.status == "interrupted"


async def test_a_turn_that_was_continued_is_finished_only_by_the_last_attempt(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    await session.begin_turn(start(1, attempt=2))
    await session.begin_turn(start(1, attempt=2))
    with pytest.raises(StorageConflict):
        await session.begin_turn(start(1, attempt=1))
    for attempt in (0, 1):
        with pytest.raises(TurnLost):
            await session.finish_turn(reply(1, parts=text("From the dead")), attempt=attempt)
    assert await session.finish_turn(reply(1), attempt=2) == reply(1)
    assert await session.finish_turn(reply(1), attempt=2) == reply(1), "sent again"
    with pytest.raises(TurnLost):
        await session.finish_turn(reply(1, parts=text("From the dead")))
    with pytest.raises(StorageConflict):
        await session.begin_turn(start(1, attempt=3))
    await converse(session, 2, first=2)


async def test_a_turn_that_never_began_cannot_be_continued(session: SessionManager) -> None:
    with pytest.raises(StorageConflict):
        await session.begin_turn(start(1, attempt=1))
    assert await session.head() is None


async def test_a_dead_attempt_can_be_repaired_whichever_it_was(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    await session.begin_turn(start(1, attempt=1))
    assert await session.repair_turn(reply(1, status="interrupted")) is not None
    await converse(session, 2, first=2)


JOINED: list[Part] = [TextPart(text="One."), SteeringPart(message_id="joined", text="Shorter."), TextPart(text="Two.")]


async def test_a_message_is_found_by_its_id_also_where_it_has_joined_an_answer(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    await session.finish_turn(reply(1, parts=JOINED))
    await converse(session, 2, 2)
    assert await session.find("unknown") is None
    found = await session.find("question-2")
    assert found is not None
    assert (found.role, found.turn_number) == ("user", 2)
    joined = await session.find("joined")
    assert joined is not None
    assert (joined.role, joined.turn_number, joined.parts, joined.steering_ids) == ("assistant", 1, JOINED, ["joined"])
    assert (await session.load("joined")).earlier == joined
    with pytest.raises(NotFound):
        await session.rate("joined", Feedback(rating="up"))


async def test_a_message_that_has_joined_an_answer_begins_no_turn(session: SessionManager) -> None:
    await session.begin_turn(start(1))
    await session.finish_turn(reply(1, parts=JOINED))
    with pytest.raises(StorageConflict):
        await session.begin_turn(start(2, message_id="joined", was_posted=True))
    await session.begin_turn(start(2, was_posted=True))


async def test_an_answer_with_a_message_that_joined_it_takes_the_place_of_the_one_before(
    session: SessionManager,
) -> None:
    """It shows nothing, but the message would be lost."""
    await converse(session, 1)
    await session.begin_turn(start(1, "again", again=True))
    stored = await session.finish_turn(reply(1, "again", "failed", parts=JOINED[1:2]))
    assert stored.id == "again"
    await session.begin_turn(start(1, "third", again=True))
    stored = await session.finish_turn(reply(1, "third", "failed", parts=JOINED[1:2]))
    assert stored.id == "again", "nothing of it is new"
