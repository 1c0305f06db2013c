"""Another answer to a message, beside those that it has."""

from dataclasses import replace

import pytest

from omniagent import Query
from omniagent.errors import TurnInProgress
from omniagent.session.ids import new_id
from tests.fixtures.conversation import Conversation, seen
from tests.fixtures.stream import check_order, outline


async def answered(conversation: Conversation, prompt: str) -> str:
    """Ask, and return the id of the answer."""
    events = await conversation.ask(Query(prompt, "m1"))
    return str(events[0]["messageId"])


async def test_a_regenerated_answer_is_a_sibling_of_the_old_one(conversation: Conversation) -> None:
    old = await answered(conversation, "[echo:Hello.]")
    events = await conversation.ask(Query(regenerate=True, replaces=old))
    check_order(events)
    new = events[0]["messageId"]
    assert new != old
    assert events[0]["messageMetadata"]["turnNumber"] == 1
    _, shown = await conversation.runner().history()
    assert (shown.id, shown.siblings, shown.metadata["replaces"]) == (new, (old, new), old)
    assert conversation.document["latest_turn_number"] == 1


async def test_a_regeneration_that_fails_leaves_the_old_answer_beside_it(conversation: Conversation) -> None:
    """The model fails at every second attempt of this prompt: the third call fails again."""
    query = Query(f"[fail-once:500] Are you there, {new_id()}?", "m1")
    await conversation.ask(query)
    old = (await conversation.ask(query))[0]["messageId"]
    failed = await conversation.ask(Query(regenerate=True, replaces=old))
    assert outline(failed)[-3:-1] == ["finish error", "data-session failed"]
    runner = conversation.runner()
    assert [message.id for message in await runner.history()] == ["m1", failed[0]["messageId"]]
    await runner.switch(old)
    assert [(message.id, message.status) for message in await runner.history()] == [
        ("m1", "complete"),
        (old, "complete"),
    ]


async def test_regenerating_twice_what_is_replaced_already_replays(conversation: Conversation) -> None:
    old = await answered(conversation, "[echo:Hello.]")
    query = Query(regenerate=True, replaces=old)
    first = await conversation.ask(query)
    asked_before = len(conversation.model.requests)
    again = await conversation.ask(query)
    assert again[0]["messageId"] == first[0]["messageId"]
    assert outline(again) == outline(first)
    assert len(conversation.model.requests) == asked_before


@pytest.mark.parametrize("named", ["the answer", "the message"])
async def test_an_older_answer_is_regenerated_and_what_followed_it_kept(conversation: Conversation, named: str) -> None:
    old = await answered(conversation, "[echo:Hello.]")
    last = (await conversation.ask(Query("[echo:More.]", "m2")))[0]["messageId"]
    events = await conversation.ask(Query(regenerate=True, replaces=old if named == "the answer" else "m1"))
    assert len(conversation.model.requests[-1].body["input"]) == 1, "the path to the message, and nothing after it"
    runner, new = conversation.runner(), events[0]["messageId"]
    assert [message.id for message in await runner.history()] == ["m1", new]
    assert [message.id for message in await runner.history(branch=last)] == ["m1", old, "m2", last]
    await runner.switch(old)
    assert [message.id for message in await runner.history()] == ["m1", old, "m2", last]
    again = (await conversation.ask(Query(regenerate=True, replaces=old)))[0]["messageId"]
    assert (await runner.history())[-1].siblings == (old, new, again), "a new wish, not a retry"


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


@pytest.mark.parametrize("replaces", [None, "the answer", "m1"])
async def test_regenerating_a_message_with_other_parts_edits_it(
    conversation: Conversation, replaces: str | None
) -> None:
    old = await answered(conversation, "[echo:Hello.]")
    edited = Query("[echo:Bye.]", "m1", regenerate=True, replaces=old if replaces == "the answer" else replaces)
    await conversation.ask(edited)
    question, answer = await conversation.runner().history()
    assert (question.text, answer.text, len(question.siblings)) == ("[echo:Bye.]", "Bye.", 2)


async def test_an_edit_of_a_running_message_waits_for_its_end_or_interrupts_it(conversation: Conversation) -> None:
    prompt = "[stall] [echo:one two three four]"
    turn = await conversation.start(Query(prompt, "m1"))
    await seen(turn, "text-delta")
    with pytest.raises(TurnInProgress, match="Stop it before you edit it"):
        await conversation.ask(Query("[echo:Else.]", "m1", busy="queue"))
    edited = await conversation.start(Query("[echo:Else.]", "m1", busy="interrupt"))
    assert (await turn.result()).status == "cancelled"
    assert (await edited.result()).text == "Else."
    assert [message.text for message in await conversation.runner().history()] == ["[echo:Else.]", "Else."]
