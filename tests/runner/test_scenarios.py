"""What is streamed and what is stored, for every way a turn can go. Every provider streams the same."""

import asyncio
import time
from dataclasses import replace

from omniagent import Agent, tool
from omniagent.messages import ORPHAN_ERROR, Usage
from omniagent.session import window
from omniagent.testing import Gate, ScriptedModel
from tests.fixtures.conversation import QUICK, Conversation, Json, each_api, events_of, seen
from tests.fixtures.stream import check_order, outline
from tests.runner.scenarios import SCENARIOS, STEP, agent, call, said, text, used
from tests.runner.sessions import Sessions, moved_loop


def stored_parts(answer: Json) -> list[Json]:
    """The parts as MongoDB holds them, without the ids and the sealed thoughts that the model invents."""
    invented = ("call_id", "provider_data", "source_id")
    return [{name: value for name, value in part.items() if name not in invented} for part in answer["parts"]]


@each_api
async def test_mongodb_holds_what_was_streamed_and_the_next_turn_sees_it(conversation: Conversation) -> None:
    """P5: whatever a turn left behind, the API takes it as history."""
    for number, scenario in enumerate(SCENARIOS, 1):
        asked = conversation.but(agent=agent(), settings=replace(QUICK, **scenario.settings))
        events = await asked.ask(scenario.prompt)
        check_order(events)
        assert outline(events) == scenario.stream, scenario.name

        *_, question, answer = asked.messages
        start, finish, data = events[0], *(event for event in events if event["type"] in {"finish", "data-session"})
        assert (question["role"], question["turn_number"], question["status"]) == ("user", number, "complete")
        assert question["parts"] == [said(scenario.prompt)]
        assert stored_parts(answer) == scenario.parts, scenario.name
        assert (answer["role"], answer["turn_number"], answer["status"]) == ("assistant", number, scenario.status)
        assert answer["client_message_id"] == start["messageId"] == data["data"]["messageId"]
        assert answer["usage"] == finish["messageMetadata"]["usage"]
        assert answer["metadata"] == finish["messageMetadata"]
        assert (asked.document["latest_turn_number"], asked.document["turn"]) == (number, None)
    assert outline(await conversation.ask("[echo:All well.]"))[-2:] == ["finish stop", "data-session complete"]


@each_api
async def test_stopped_before_the_first_text(conversation: Conversation) -> None:
    left = conversation.model.disconnects
    turn = await conversation.start("[stall:first] Hello?")
    await conversation.model.until(lambda model: model.active > 0)
    await conversation.stop()
    events = await events_of(turn)
    check_order(events)
    ending = ["abort cancelled", "finish other", "data-session cancelled"]
    assert outline(events) == ["start", "start-step", "finish-step", *ending]
    assert (conversation.answer["parts"], conversation.answer["status"]) == ([STEP], "cancelled")
    await conversation.model.until(lambda model: model.disconnects > left)


@each_api
async def test_stopped_during_the_text(conversation: Conversation) -> None:
    left = conversation.model.disconnects
    turn = await conversation.start("[stall] [echo:one two three four]")
    await seen(turn, "text-delta")
    await conversation.stop()
    events = await events_of(turn)
    check_order(events)
    ending = ["abort cancelled", "finish other", "data-session cancelled"]
    assert outline(events) == ["start", "start-step", *text("one two three"), "finish-step", *ending]
    assert (conversation.answer["parts"], conversation.answer["status"]) == ([STEP, said("one two three")], "cancelled")
    counted = Usage.from_dict(conversation.answer["usage"])
    assert (counted.estimated, counted.output_tokens) == (True, window.estimate_text("one two three"))
    assert counted.input_tokens > 0
    await conversation.model.until(lambda model: model.disconnects > left)


async def test_stopped_during_a_tool(conversation: Conversation) -> None:
    running, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait until stopped."""
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    asked = conversation.but(agent=Agent("helper", "", [wait]))
    turn = await asked.start("[tool:wait {}]")
    await running.wait()
    await asked.stop()
    events = await events_of(turn)
    check_order(events)
    assert outline(events) == [
        "start",
        "start-step",
        *call(1, "wait", "{}"),
        "tool-input-available #1 wait {}",
        f"tool-output-error #1 {ORPHAN_ERROR}",
        "finish-step",
        "abort cancelled",
        "finish other",
        "data-session cancelled",
    ]
    assert stored_parts(asked.answer) == [STEP, used("wait", {}, error=ORPHAN_ERROR, public=ORPHAN_ERROR)]
    assert asked.answer["status"] == "cancelled"
    assert ended.is_set()


async def test_out_of_time(sessions: Sessions) -> None:
    gate = Gate()
    runner = sessions.runner(ScriptedModel(["one two three", gate, " four"]))
    turn = await runner.start("Hello?", deadline=time.monotonic() + 600)
    await gate.reached()
    with moved_loop(600):
        events = await events_of(turn)
        await turn.ended()
    check_order(events)
    ending = ["abort deadline", "finish other", "data-session cancelled"]
    assert outline(events) == ["start", "start-step", *text("one two three"), "finish-step", *ending]
    assert sessions.history[-1][1:] == ("one two three", "cancelled")


async def test_a_tool_whose_timeout_is_longer_than_the_turn_gets_the_time_there_is(conversation: Conversation) -> None:
    @tool(timeout_seconds=600)
    async def quick() -> str:
        """Answer at once."""
        return "in time"

    asked = conversation.but(agent=Agent("helper", "", [quick]))
    events = await asked.ask("[tool:quick {}] [then] [echo:Done.]", deadline=time.monotonic() + 60)
    check_order(events)
    assert 'tool-output-available #1 "in time"' in outline(events)
    assert asked.answer["status"] == "complete"
