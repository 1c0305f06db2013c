"""Rolling summaries beside the answers, on the real MongoDB."""

from dataclasses import replace
from typing import Any

import pytest

from omniagent import Query
from omniagent.persistence.documents import now
from omniagent.turns import turn as turns
from omniagent.turns.turn import RunResult
from tests.fixtures.conversation import QUICK, Conversation, HeldBack, seen

SOON = replace(QUICK, summary_after_turns=3)


@pytest.fixture
def conversation(conversation: Conversation) -> Conversation:
    """Three turns, so that the fourth makes a summary."""
    return conversation.but(settings=SOON)


async def three_turns(conversation: Conversation, *texts: str) -> None:
    for text in texts or ("My name is Ada.", "[echo:Two.]", "[echo:Three.]"):
        await conversation.ask(text)
    assert conversation.summaries == []


def covered(conversation: Conversation) -> list[tuple[int, int]]:
    return [(summary["start_turn_number"], summary["end_turn_number"]) for summary in conversation.summaries]


async def run(conversation: Conversation, text: str) -> RunResult:
    return await conversation.runner().run(text)


async def test_when_enough_turns_have_passed_a_summary_covers_them_up_to_the_previous_one(
    conversation: Conversation,
) -> None:
    await three_turns(conversation)
    events = await conversation.ask("[echo:Four.]")
    assert covered(conversation) == [(1, 3)]
    assert events[-1]["data"]["summarizedTo"] == 3
    assert "Ada" in conversation.summaries[0]["content"]
    assert conversation.summaries[0]["token_count"] > 0
    assert conversation.answer["previous_summary_id"] is None, "it was made beside this answer, not before it"


async def test_the_next_turn_is_shown_the_summary_instead_of_the_turns_it_covers(conversation: Conversation) -> None:
    await three_turns(conversation)
    await conversation.ask("[echo:Four.]")
    await conversation.ask("What is my name?")
    request = conversation.model.requests[-1].body
    assert [item["content"] for item in request["input"]] == ["[echo:Four.]", "Four.", "What is my name?"]
    assert conversation.summaries[0]["content"] in request["instructions"]
    assert "Ada" in conversation.answer["parts"][1]["text"]
    assert conversation.answer["previous_summary_id"] == str(conversation.summaries[0]["_id"])


async def test_summaries_follow_each_other_without_gap_or_overlap(conversation: Conversation) -> None:
    for number in range(1, 12):
        await conversation.ask(f"[echo:Answer {number}.]")
    assert covered(conversation) == [(1, 3), (4, 6), (7, 9)]


async def test_many_tokens_make_a_summary_due_as_well(conversation: Conversation) -> None:
    wordy = conversation.but(settings=replace(QUICK, summary_after_tokens=200))
    await wordy.ask("[long:300]")
    assert wordy.summaries == []
    await wordy.ask("[echo:Short.]")
    assert covered(wordy) == [(1, 1)]


async def test_answer_and_summary_are_made_at_the_same_time(conversation: Conversation) -> None:
    """The answer stalls until somebody stops it, and the summary has been asked for all the same."""
    await three_turns(conversation)
    asked_before = conversation.model.count
    turn = await conversation.start("[stall] [echo:one two three four]")
    await conversation.model.until(lambda model: model.count == asked_before + 2)
    await seen(turn, "text-delta")
    await conversation.stop()
    await turn.result()


async def test_a_summary_that_somebody_else_stored_first_stands_and_the_answer_is_kept(
    conversation: Conversation,
) -> None:
    await three_turns(conversation)
    session = HeldBack(conversation)
    turn = await conversation.start("[echo:Four.]", session=session)
    await session.writing.wait()
    theirs: dict[str, Any] = {
        "session_id": conversation.session.key,
        "content": "Theirs.",
        "token_count": 2,
        "start_turn_number": 1,
        "end_turn_number": 3,
        "created_at": now(),
    }
    conversation.database.summaries.insert_one(theirs)
    session.let_go.set()
    result = await turn.result()
    assert (result.status, result.stored) == ("complete", True)
    assert [summary["content"] for summary in conversation.summaries] == ["Theirs."]
    assert conversation.answer["parts"][1]["text"] == "Four."


@pytest.mark.parametrize(("start", "end"), [(1, 2), (2, 3), (1, 3)])
async def test_a_summary_that_overlaps_another_cannot_be_stored(
    conversation: Conversation, start: int, end: int
) -> None:
    """Either end of a summary is unique: a writer with an older view of the session is refused."""
    await three_turns(conversation)
    session = HeldBack(conversation)
    turn = await conversation.start("[echo:Four.]", session=session)
    await session.writing.wait()
    other = {"session_id": conversation.session.key, "content": "Theirs.", "token_count": 2, "created_at": now()}
    conversation.database.summaries.insert_one({**other, "start_turn_number": start, "end_turn_number": end})
    session.let_go.set()
    assert (await turn.result()).stored
    assert covered(conversation) == [(start, end)]


@pytest.mark.parametrize("marker", ["[summary:fail:500]", "[summary:empty]", "[summary:failed]", "[summary:break]"])
async def test_a_summary_that_fails_does_not_fail_the_turn_and_is_reported(
    conversation: Conversation, marker: str
) -> None:
    await three_turns(conversation, f"{marker} Hello", "[echo:Two.]", "[echo:Three.]")
    result = await run(conversation, "[echo:Four.]")
    assert (result.status, result.text) == ("complete", "Four.")
    assert (result.summary_made, result.summary_missed) == (False, True)
    assert (conversation.summaries, conversation.answer["status"]) == ([], "complete")


async def test_a_summary_that_takes_too_long_is_cut_off(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SUMMARY_GRACE_SECONDS", 0.05)
    left = conversation.model.disconnects
    await three_turns(conversation, "[summary:stall] Hello", "[echo:Two.]", "[echo:Three.]")
    result = await run(conversation, "[echo:Four.]")
    assert (result.status, result.summary_made, result.summary_missed) == ("complete", False, True)
    assert conversation.summaries == []
    await conversation.model.until(lambda model: model.disconnects > left)


async def test_a_summary_that_comes_late_covers_every_turn_since(conversation: Conversation) -> None:
    patient = conversation.but(settings=replace(QUICK, summary_after_turns=10))
    await three_turns(patient, *(f"[echo:Answer {number}.]" for number in range(1, 6)))
    await conversation.ask("[echo:Six.]")
    assert covered(conversation) == [(1, 5)]


async def test_turns_that_do_not_fit_into_one_call_are_summarized_in_pieces(conversation: Conversation) -> None:
    small = conversation.but(settings=replace(SOON, summary_input_tokens=100))
    await three_turns(small, *(f"[echo:{'word ' * 40}] Question {number}" for number in (1, 2, 3)))
    asked_before = small.model.count
    await small.ask("[echo:Four.]")
    assert covered(small) == [(1, 3)]
    assert small.model.count > asked_before + 3, "the answer, and a call for each piece"


async def test_a_gap_that_the_window_cannot_close_is_reported(conversation: Conversation) -> None:
    """Turns have left the window unsummarized: only a regeneration reads them again."""
    await three_turns(conversation.but(settings=QUICK), *(f"[echo:Answer {number}.]" for number in range(1, 8)))
    narrow = conversation.but(settings=replace(QUICK, summary_after_turns=2, context_max_turns=2))
    result = await run(narrow, "[echo:Eight.]")
    assert (result.summary_made, result.summary_missed) == (False, True)
    assert narrow.summaries == []


async def test_without_need_nothing_is_missed(conversation: Conversation) -> None:
    result = await run(conversation, "[echo:One.]")
    assert (result.summary_made, result.summary_missed) == (False, False)


async def test_a_regenerated_answer_is_not_summarized_with_its_own_turn(conversation: Conversation) -> None:
    await three_turns(conversation)
    await conversation.ask("[echo:Four.]")
    await conversation.ask(Query(regenerate=True))
    assert covered(conversation) == [(1, 3)]
