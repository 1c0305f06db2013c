"""Every promise of `SessionManager`, kept by MongoDB and by the manager in memory alike."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omniagent.errors import InvalidRequest, NotFound, SessionErased, StorageConflict, StorageRejected, TurnLost
from omniagent.messages import (
    CallRequest,
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
    close_open_calls,
)
from omniagent.persistence import mongo_session
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.session import in_memory
from omniagent.session.in_memory import InMemorySessionManager, InMemoryStore
from omniagent.session.manager import (
    SessionHead,
    SessionManager,
    SessionMessage,
    TurnStart,
    new_id,
    slot_of,
)
from omniagent.session.summary_store import RollingSummary
from omniagent.settings import Settings

Open = Callable[..., SessionManager]
LATER = datetime(2100, 1, 1, tzinfo=UTC)
SMALL = Settings(context_max_turns=3, summary_after_turns=3)


@pytest.fixture(params=["memory", "mongodb"])
def open_session(request: pytest.FixtureRequest) -> Open:
    """Opens sessions of a user of the test's own: `open_session("a")`."""
    user = f"user:{new_id()}"
    memory = InMemoryStore()
    store = request.getfixturevalue("store") if request.param == "mongodb" else None

    def open_one(session_id: str = "chat", **options: Any) -> SessionManager:
        if store is not None:
            return MongoSessionManager(store, user, session_id, **options)
        return InMemorySessionManager(user, session_id, store=memory, **options)

    return open_one


@pytest.fixture
def session(open_session: Open) -> SessionManager:
    return open_session(settings=SMALL)


def text(content: str) -> list[Part]:
    return [TextPart(text=content)]


def start(number: int, turn_id: str | None = None, **changes: Any) -> TurnStart:
    begun = TurnStart(turn_id or f"answer-{number}", number, f"question-{number}", text(f"Question {number}"))
    # As planned from the turn before, where that was the last one.
    return replace(begun, **{"seen_turn_id": f"answer-{number - 1}" if number > 1 else None, **changes})


def reply(number: int, turn_id: str | None = None, status: Status = "complete", **changes: Any) -> SessionMessage:
    message = SessionMessage(turn_id or f"answer-{number}", "assistant", number, text(f"Answer {number}"), status)
    return replace(message, turn_id=turn_id or "", **changes)


async def converse(session: SessionManager, last: int, first: int = 1) -> None:
    for number in range(first, last + 1):
        await session.begin_turn(start(number))
        await session.finish_turn(reply(number))


def summary(first: int, last: int) -> RollingSummary:
    return RollingSummary(f"{first}-{last}", 3, first, last)


async def stored_ids(session: SessionManager) -> list[str]:
    state = await session.load()
    return [message.id for message in (state.question, state.answer) if message]


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


# Summaries


@pytest.mark.parametrize("draft", [False, True])
async def test_a_summary_continues_the_newest_and_stops_before_the_latest_turn(
    session: SessionManager, draft: bool
) -> None:
    await converse(session, 5)
    for wrong in (summary(2, 3), summary(1, 5), summary(1, 6), summary(1, 0)):
        assert not await session.add_summary(wrong, draft=draft)
    assert await session.add_summary(summary(1, 2), draft=draft)
    for wrong in (summary(1, 2), summary(2, 3), summary(4, 4), summary(3, 5)):
        assert not await session.add_summary(wrong, draft=draft)
    assert await session.add_summary(summary(3, 4), draft=draft)
    assert await session.latest_summary(draft=draft) == summary(3, 4)
    assert await session.latest_summary(draft=not draft) is None


async def test_there_is_no_summary_of_no_session(session: SessionManager) -> None:
    assert not await session.add_summary(summary(1, 1))
    assert not await session.publish_draft()


async def test_of_equal_summaries_at_the_same_moment_one_is_stored(open_session: Open) -> None:
    await converse(open_session(), 3)
    added = await asyncio.gather(*(open_session().add_summary(summary(1, end)) for end in (1, 2, 2, 1)))
    assert added.count(True) == 1


async def test_a_published_draft_is_the_only_summary(session: SessionManager) -> None:
    await converse(session, 6)
    for span in ((1, 1), (2, 2), (3, 5)):
        assert await session.add_summary(summary(*span))
    for span in ((1, 2), (3, 4)):
        assert await session.add_summary(summary(*span), draft=True)
    assert await session.publish_draft()
    assert await session.latest_summary() == replace(summary(3, 4), start_turn_number=1)
    assert await session.latest_summary(draft=True) is None
    assert not await session.publish_draft(), "there is no other"
    assert await session.add_summary(summary(5, 5))


async def test_dropped_summaries_are_gone(session: SessionManager) -> None:
    await converse(session, 3)
    for is_draft in (False, True):
        assert await session.add_summary(summary(1, 2), draft=is_draft)
    await session.drop_summaries()
    assert [await session.latest_summary(draft=is_draft) for is_draft in (False, True)] == [None, None]


async def test_a_rebuild_that_races_new_summaries_leaves_no_overlap(open_session: Open) -> None:
    await converse(open_session(), 12)
    for number in range(1, 6):
        await open_session().add_summary(summary(number, number), draft=True)

    async def extend() -> list[RollingSummary]:
        """What a turn does beside its answer: continue what is the newest summary now."""
        added = []
        for _ in range(6):
            newest = await open_session().latest_summary()
            after = newest.end_turn_number if newest else 0
            addition = summary(after + 1, after + 2)
            if await open_session().add_summary(addition):
                added.append(addition)
        return added

    _, published = await asyncio.gather(extend(), open_session().publish_draft())
    assert published
    rest = await extend()
    newest = await open_session().latest_summary()
    assert newest is not None
    assert newest.end_turn_number >= 10
    spans = [(addition.start_turn_number, addition.end_turn_number) for addition in rest]
    assert all(end + 1 == begin for (_, end), (begin, _) in itertools.pairwise(spans))


# Names and deletion


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


# A turn that waits


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
