"""The last answer again, in its place."""

from dataclasses import replace

import pytest

from omniagent import Query
from omniagent.errors import InvalidRequest, NotFound, NotRegenerable, TurnInProgress
from omniagent.session.ids import new_id
from tests.fixtures.conversation import Conversation, seen
from tests.fixtures.stream import check_order, outline


async def answered(conversation: Conversation, prompt: str) -> str:
    """Ask, and return the id of the answer."""
    events = await conversation.ask(Query(prompt, "m1"))
    return str(events[0]["messageId"])


async def test_a_regenerated_answer_takes_the_place_of_the_old_one(conversation: Conversation) -> None:
    old = await answered(conversation, "[echo:Hello.]")
    events = await conversation.ask(Query(regenerate=True, replaces=old))
    check_order(events)
    new = events[0]["messageId"]
    assert new != old
    assert events[0]["messageMetadata"]["turnNumber"] == 1
    assert [message["client_message_id"] for message in conversation.messages] == ["m1", new]
    assert conversation.answer["metadata"]["replaces"] == old
    assert conversation.document["latest_turn_number"] == 1


async def test_the_model_is_not_shown_the_answer_that_is_replaced(conversation: Conversation) -> None:
    await answered(conversation, "[echo:Hello.]")
    await conversation.ask(Query(regenerate=True))
    assert [item["role"] for item in conversation.model.requests[-1].body["input"]] == ["user"]


async def test_a_failure_keeps_the_old_answer(conversation: Conversation) -> None:
    """The model fails at every second attempt of this prompt: the third call fails again."""
    query = Query(f"[fail-once:500] Are you there, {new_id()}?", "m1")
    await conversation.ask(query)
    events = await conversation.ask(query)
    old = conversation.answer
    assert old["client_message_id"] == events[0]["messageId"]
    failed = await conversation.ask(Query(regenerate=True, replaces=events[0]["messageId"]))
    assert outline(failed)[-3:-1] == ["finish error", "data-session failed"]
    assert conversation.answer == old
    # The page shows what a reload would: the old answer, under its own id and no other.
    assert [event["messageId"] for event in failed if event["type"] == "start"] == [old["client_message_id"]]
    assert outline(failed)[-7:-3] == outline(events)[2:6]
    assert conversation.document["turn"] is None


async def test_regenerating_twice_what_is_replaced_already_replays(conversation: Conversation) -> None:
    old = await answered(conversation, "[echo:Hello.]")
    query = Query(regenerate=True, replaces=old)
    first = await conversation.ask(query)
    asked_before = len(conversation.model.requests)
    again = await conversation.ask(query)
    assert again[0]["messageId"] == first[0]["messageId"]
    assert outline(again) == outline(first)
    assert len(conversation.model.requests) == asked_before


async def test_only_the_last_answer_can_be_regenerated(conversation: Conversation) -> None:
    old = await answered(conversation, "[echo:Hello.]")
    await conversation.ask(Query("[echo:More.]", "m2"))
    with pytest.raises(NotRegenerable):
        await conversation.ask(Query(regenerate=True, replaces=old))


async def test_a_session_without_a_turn_has_nothing_to_regenerate(conversation: Conversation) -> None:
    with pytest.raises(NotFound):
        await conversation.ask(Query(regenerate=True))


async def test_a_message_that_the_session_does_not_have_cannot_be_regenerated(conversation: Conversation) -> None:
    await answered(conversation, "[echo:Hello.]")
    with pytest.raises(NotFound):
        await conversation.ask(Query(message_id="unknown", regenerate=True))
    assert len(conversation.messages) == 2


async def test_a_retry_joins_the_running_regeneration_and_another_one_is_refused(conversation: Conversation) -> None:
    old = await conversation.start(Query("[stall] [echo:one two three four]", "m1"))
    await seen(old, "text-delta")
    await conversation.stop()
    await old.result()
    query = Query("[stall] [echo:one two three four]", "m1", regenerate=True, replaces=old.message_id)
    new = await conversation.start(query)
    await seen(new, "text-delta")
    joined = await conversation.start(query)
    assert joined.message_id == new.message_id
    with pytest.raises(TurnInProgress):
        await conversation.start(replace(query, replaces=new.message_id))
    await conversation.stop()
    await new.result()
    await joined.result()


async def test_regenerating_while_another_message_is_answered_is_refused(conversation: Conversation) -> None:
    turn = await conversation.start(Query("[stall] [echo:one two three four]", "m1"))
    await seen(turn, "text-delta")
    with pytest.raises(TurnInProgress):
        await conversation.ask(Query(regenerate=True))
    await conversation.stop()
    await turn.result()


async def test_a_stopped_regeneration_keeps_what_it_has(conversation: Conversation) -> None:
    """Stop is the user's wish: what they saw is what stays."""
    old = await conversation.start(Query("[stall] [echo:one two three four]", "m1"))
    await seen(old, "text-delta")
    await conversation.stop()
    await old.result()
    new = await conversation.start(Query(regenerate=True, replaces=old.message_id))
    await seen(new, "text-delta")
    await conversation.stop()
    await new.result()
    assert (conversation.answer["client_message_id"], conversation.answer["status"]) == (new.message_id, "cancelled")


async def test_a_retry_of_the_message_replays_the_regenerated_answer(conversation: Conversation) -> None:
    old = await answered(conversation, "[echo:Hello.]")
    new = (await conversation.ask(Query(regenerate=True, replaces=old)))[0]["messageId"]
    assert await answered(conversation, "[echo:Hello.]") == new


@pytest.mark.parametrize("replaces", [None, "the answer", "m1"])
async def test_a_question_that_was_changed_is_not_answered_as_it_was(
    conversation: Conversation, replaces: str | None
) -> None:
    old = await answered(conversation, "[echo:Hello.]")
    stored = conversation.messages
    with pytest.raises(InvalidRequest, match="another text"):
        await conversation.ask(
            Query("[echo:Bye.]", "m1", regenerate=True, replaces=old if replaces == "the answer" else replaces)
        )
    assert conversation.messages == stored
    same = Query("[echo:Hello.]", "m1", regenerate=True, replaces=old)
    assert (await conversation.ask(same))[0]["messageId"] != old


async def test_a_question_that_was_changed_stops_and_joins_no_answer(conversation: Conversation) -> None:
    prompt = "[stall] [echo:one two three four]"
    turn = await conversation.start(Query(prompt, "m1"))
    await seen(turn, "text-delta")
    with pytest.raises(InvalidRequest):
        await conversation.ask(Query("Something else", "m1", regenerate=True, busy="interrupt"))
    regenerated = await conversation.start(Query(prompt, "m1", regenerate=True, busy="interrupt"))
    assert (await turn.result()).status == "cancelled"
    await seen(regenerated, "text-delta")
    with pytest.raises(InvalidRequest):
        await conversation.ask(Query("Something else", "m1", regenerate=True))
    again = await conversation.start(Query(prompt, "m1"))  # joins: it is the answer to this message
    await conversation.stop()
    assert (await again.result()).message_id == regenerated.message_id
    assert (await regenerated.result()).status == "cancelled"
