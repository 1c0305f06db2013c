"""The same message again: joined while it is answered, replayed when it is, answered again when it was not.

What depends on the journal runs with both registries: `MemoryRegistry` and DynamoDB.
"""

import asyncio

import pytest

from omniagent import Query
from omniagent.errors import InvalidRequest
from omniagent.turns.registry import TurnRegistry
from tests.fixtures.conversation import Conversation, each_registry, events_of, seen
from tests.fixtures.stream import check_order, joined, outline

STALLED = Query("[stall] [echo:one two three four]", "m1")


@pytest.fixture
def conversation(conversation: Conversation, registry: TurnRegistry) -> Conversation:
    return conversation.but(registry=registry)


@each_registry
async def test_while_it_is_answered_the_same_message_joins_from_the_first_event(conversation: Conversation) -> None:
    turn = await conversation.start(STALLED)
    await seen(turn, "text-delta")
    joining = asyncio.create_task(events_of(await conversation.start(STALLED)))
    await conversation.stop()
    assert await joining == await events_of(turn)
    assert conversation.document["latest_turn_number"] == 1


@each_registry
async def test_ten_at_once_make_one_turn_and_one_model_request(conversation: Conversation) -> None:
    query = Query("[echo:Only once.]", "m1")
    asked_before = len(conversation.model.requests)
    streams = await asyncio.gather(*(conversation.ask(query) for _ in range(10)))
    for stream in streams:
        check_order(stream)
    assert {str([*joined(stream)][1:-2]) for stream in streams} == {str([*joined(streams[0])][1:-2])}
    assert len({stream[0]["messageId"] for stream in streams}) == 1
    assert len(conversation.model.requests) == asked_before + 1
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]


async def test_once_answered_the_stored_answer_is_replayed_without_the_model(conversation: Conversation) -> None:
    query = Query("[echo:Only once.]", "m1")
    first = await conversation.ask(query)
    asked_before = len(conversation.model.requests)
    again = await conversation.ask(query)
    check_order(again)
    assert outline(again) == outline(first)
    assert again[0]["messageId"] == first[0]["messageId"]
    assert len(conversation.model.requests) == asked_before
    assert (await conversation.runner().run(query)).text == "Only once."


async def test_other_parts_under_the_id_of_a_stored_message_are_an_edit(conversation: Conversation) -> None:
    first = (await conversation.ask(Query("[echo:First.]", "m1")))[0]["messageId"]
    await conversation.ask(Query("[echo:Second.]", "m2", parent=first))
    await conversation.ask(Query("[echo:Third.]", "m3"))
    for edit in (Query("[echo:Edited.]", "m2", parent=first), Query("[echo:Edited.]", "m2")):
        await conversation.ask(edit)
        assert [each.text for each in await conversation.runner().history()] == [
            *("[echo:First.]", "First.", "[echo:Edited.]", "Edited.")
        ]
        assert [item["role"] for item in conversation.model.requests[-1].body["input"]] == ["user", "assistant", "user"]
    assert len((await conversation.runner().history())[2].siblings) == 2, "the second was a retry"


async def test_a_message_follows_the_one_that_it_names(conversation: Conversation) -> None:
    """So an edit arrives from a page that gives the edited message a new id."""
    first = (await conversation.ask(Query("[echo:First.]", "m1")))[0]["messageId"]
    await conversation.ask(Query("[echo:Second.]", "m2", parent=first))
    for query in (Query("[echo:Other.]", "m3", parent=first), Query("[echo:Again.]", "m4", parent="")):
        await conversation.ask(query)
        await conversation.ask(query)
    runner = conversation.runner()
    assert [message.text for message in await runner.history()] == ["[echo:Again.]", "Again."]
    await runner.switch(first)
    assert [message.id for message in await runner.history()][::2] == ["m1", "m3"]
    unknown = await conversation.ask(Query("[echo:Last.]", "m5", parent="the-clients-own"))
    assert unknown[0]["messageMetadata"]["turnNumber"] == 3, "it follows the latest"


async def test_a_message_of_another_branch_is_replayed_without_its_parent(conversation: Conversation) -> None:
    first = (await conversation.ask(Query("[echo:First.]", "m1")))[0]["messageId"]
    second = await conversation.ask(Query("[echo:Second.]", "m2"))
    await conversation.ask(Query("[echo:Other.]", "m3", parent=first))
    again = await conversation.ask(Query("[echo:Second.]", "m2"))
    assert again[0]["messageId"] == second[0]["messageId"]
    assert [message.id for message in await conversation.runner().history()][::2] == ["m1", "m3"], "nothing is switched"


async def test_a_cancelled_answer_is_given_again_in_the_same_turn(conversation: Conversation) -> None:
    turn = await conversation.start(STALLED)
    await conversation.stop()
    await turn.result()
    again = await conversation.start(STALLED)
    await seen(again, "text-delta")  # one that showed nothing would leave the first in its place
    await conversation.stop()
    await again.result()
    _, answer = await conversation.runner().history()
    assert (answer.id, len(answer.siblings)) == (again.message_id, 2)


async def test_every_refusal_of_run_stream_comes_before_the_first_event(conversation: Conversation) -> None:
    stream = conversation.runner().run_stream("  ")
    with pytest.raises(InvalidRequest):
        await anext(aiter(stream))
    with pytest.raises(InvalidRequest):
        await stream
