"""P5: whatever is stored, the model API takes the next request. Each broken turn is written by hand."""

from dataclasses import replace
from typing import Any

from tests.fixtures.conversation import QUICK, Conversation, Json, each_api
from tests.fixtures.histories import stored_leaf, stored_message
from tests.fixtures.stream import outline
from tests.runner.scenarios import agent


def tool(call_id: str = "call_1", **more: Any) -> Json:
    return {"type": "tool", "call_id": call_id, "name": "add", "input": {"a": 1, "b": 2}, "done": False, **more}


STEP: Json = {"type": "step-start"}
QUESTION: list[Json] = [{"type": "text", "text": "What is the sum?"}]

# Role and parts of the messages of one turn.
BROKEN: dict[str, list[tuple[str, list[Json]]]] = {
    "no answer": [("user", QUESTION)],
    "no question": [("assistant", [STEP, {"type": "text", "text": "Three."}])],
    "an empty answer": [("user", QUESTION), ("assistant", [])],
    "an answer of empty text": [("user", QUESTION), ("assistant", [STEP, {"type": "text", "text": ""}])],
    "an empty question": [("user", [{"type": "text", "text": ""}]), ("assistant", [{"type": "text", "text": "Yes?"}])],
    "nothing but reasoning": [("user", QUESTION), ("assistant", [STEP, {"type": "reasoning", "text": "Hm."}])],
    "reasoning of another provider": [
        ("user", QUESTION),
        ("assistant", [STEP, {"type": "reasoning", "text": "", "provider_data": {"signature": "abc"}}]),
    ],
    "a tool call without its output": [("user", QUESTION), ("assistant", [STEP, tool()])],
    "a tool call without its input": [("user", QUESTION), ("assistant", [STEP, tool(input=None)])],
    "a tool call whose input is no JSON": [("user", QUESTION), ("assistant", [STEP, tool(input='{"a": ')])],
    "a tool call whose input is a list": [("user", QUESTION), ("assistant", [STEP, tool(input=[1, 2])])],
    "a tool call with a name that no tool can have": [("user", QUESTION), ("assistant", [STEP, tool(name="a b/c!")])],
    "a tool call without a name": [("user", QUESTION), ("assistant", [STEP, tool(name="")])],
    "a tool call with a very long name": [("user", QUESTION), ("assistant", [STEP, tool(name="n" * 200)])],
    "a tool call with an output of nothing": [("user", QUESTION), ("assistant", [STEP, tool(output=None, done=True)])],
    "a tool call with an empty error": [("user", QUESTION), ("assistant", [STEP, tool(error="", done=True)])],
    "one of two tool calls without its output": [
        ("user", QUESTION),
        ("assistant", [STEP, tool("call_a", output=3, done=True), tool("call_b")]),
    ],
    "text after a tool call that never returned": [
        ("user", QUESTION),
        ("assistant", [STEP, tool(), {"type": "text", "text": "Never mind."}]),
    ],
    "tool calls without steps": [
        ("user", QUESTION),
        ("assistant", [tool("call_a"), {"type": "text", "text": "Hm."}, tool("call_b")]),
    ],
    "steps without anything": [("user", QUESTION), ("assistant", [STEP, STEP, STEP])],
    "the same call twice in a turn": [
        ("user", QUESTION),
        ("assistant", [STEP, tool("call_x", output=1, done=True), STEP, tool("call_x", output=2, done=True)]),
    ],
}


def write(conversation: Conversation, number: int, messages: list[tuple[str, list[Json]]]) -> None:
    """Put a turn into the database that no code of ours has seen."""
    key, database = conversation.session.key, conversation.database
    database.messages.delete_many({"session_id": key, "turn_number": number})
    database.messages.insert_many(
        stored_message(key, number, role, parts, status="interrupted" if role == "assistant" else "complete")
        for role, parts in messages
    )
    database.sessions.update_one({"_id": key}, {"$set": {"leaf": stored_leaf(key, number) | {"node": ""}}})


async def test_the_next_turn_is_answered_after_each_of_them(conversation: Conversation) -> None:
    """Each is the latest turn once: a session is opened there."""
    asked = conversation.but(agent=agent(), settings=replace(QUICK, context_max_turns=1000))
    await asked.ask("[echo:One.]")
    for number, (kind, messages) in enumerate(BROKEN.items(), 1):
        write(asked, 2 * number, messages)
        events = await asked.ask("[echo:Go on.]")
        assert outline(events)[-2:] == ["finish stop", "data-session complete"], kind


@each_api
async def test_the_next_turn_is_answered_after_all_of_them_and_their_summary(conversation: Conversation) -> None:
    asked = conversation.but(agent=agent())
    await asked.ask("[echo:One.]")
    for number, messages in enumerate(BROKEN.values(), 2):
        write(asked, number, messages)
    events = await asked.ask("[echo:All well.]")
    assert outline(events)[-2:] == ["finish stop", "data-session complete"]
    await asked.runner().summarize()
    assert [summary["end_turn_number"] for summary in asked.summaries] == [len(BROKEN) + 1]
    assert outline(await asked.ask("[echo:Still.]"))[-1] == "data-session complete"


@each_api
async def test_the_next_turn_is_answered_after_the_first_question_was_deleted(conversation: Conversation) -> None:
    await conversation.ask("[echo:One.]")
    conversation.database.messages.delete_one({"_id": conversation.messages[0]["_id"]})
    assert outline(await conversation.ask("[echo:Two.]"))[-1] == "data-session complete"
