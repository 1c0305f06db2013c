"""What is streamed and what is stored, for every way a turn can go. Every provider streams the same."""

import asyncio
import time
from dataclasses import replace

import pytest

from omniagent import RunResult, tool
from omniagent.messages import ORPHAN_ERROR, ToolPart
from omniagent.protocol import sse
from omniagent.session import window
from omniagent.testing import Gate, ScriptedModel, ToolCall
from tests.fixtures.conversation import QUICK, Conversation, Json, each_api, events_of, read
from tests.fixtures.live_turns import answer_of
from tests.fixtures.stream import check_order, outline
from tests.runner.scenarios import SCENARIOS, agent, call, text
from tests.runner.sessions import Sessions, moved_loop, parts_of, shown


@each_api
async def test_mongodb_holds_what_was_streamed_and_the_next_turn_sees_it(conversation: Conversation) -> None:
    """P5: whatever a turn left behind, the API takes it as history."""
    for number, scenario in enumerate(SCENARIOS, 1):
        asked = conversation.but(agent=agent(), settings=replace(QUICK, **scenario.settings))
        frames = await read(await asked.start(scenario.prompt))
        events = list(sse.decode(frames))
        check_order(events)
        assert outline(events) == scenario.stream, scenario.name

        answer = await answer_of(asked.session, number)
        assert answer is not None
        assert shown(list(answer.parts)) == shown(parts_of(frames)), scenario.name
        errors = [part.error for part in answer.parts if isinstance(part, ToolPart) and part.error]
        assert errors == list(scenario.reads), scenario.name
        *_, question, stored = asked.messages
        start, finish, data = events[0], *(event for event in events if event["type"] in {"finish", "data-session"})
        assert (question["role"], question["turn_number"], question["status"]) == ("user", number, "complete")
        assert question["parts"] == [{"type": "text", "text": scenario.prompt}]
        assert (stored["role"], stored["turn_number"], stored["status"]) == ("assistant", number, scenario.status)
        assert stored["client_message_id"] == start["messageId"] == data["data"]["messageId"]
        assert stored["usage"] == finish["messageMetadata"]["usage"]
        assert stored["metadata"] == finish["messageMetadata"]
        assert (asked.document["latest_turn_number"], asked.document["turn"]) == (number, None)
    assert outline(await conversation.ask("[echo:All well.]"))[-2:] == ["finish stop", "data-session complete"]


@pytest.mark.parametrize("words", ["", "one two three"])
@pytest.mark.parametrize("reason", ["cancelled", "deadline"])
def test_an_answer_that_is_stopped_or_out_of_time_keeps_its_text(words: str, reason: str) -> None:
    sessions, gate = Sessions(), Gate()
    model = ScriptedModel([words, gate, " four"])

    async def ended() -> tuple[list[Json], RunResult]:
        runner = sessions.runner(model)
        turn = await runner.start("Hello?", deadline=time.monotonic() + 600)
        await gate.reached()
        if reason == "cancelled":
            await runner.stop()
        with moved_loop(600 if reason == "deadline" else 0):
            events = await events_of(turn)
            await turn.ended()
        return events, await turn.result()

    events, result = asyncio.run(ended())
    check_order(events)
    ending = [f"abort {reason}", "finish other", "data-session cancelled"]
    assert outline(events) == ["start", "start-step", *text(words), "finish-step", *ending]
    assert (result.status, result.text, result.message) == ("cancelled", words, sessions.messages[-1])
    assert (result.usage.estimated, result.usage.output_tokens) == (True, bool(words) * window.estimate_text(words))
    assert (result.usage.input_tokens > 0, model.running) == (True, 0)


async def test_stopped_during_a_tool(sessions: Sessions) -> None:
    running, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait until stopped."""
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    runner = sessions.runner(ScriptedModel(ToolCall("wait", "{}")), wait)
    turn = await runner.start("Wait")
    await running.wait()
    await runner.stop()
    events = await events_of(turn)
    check_order(events)
    assert outline(events) == [
        *("start", "start-step", *call(1, "wait", "{}"), "tool-input-available #1 wait {}"),
        *(f"tool-output-error #1 {ORPHAN_ERROR}", "finish-step"),
        *("abort cancelled", "finish other", "data-session cancelled"),
    ]
    result = await turn.result()
    [part] = [part for part in result.parts if isinstance(part, ToolPart)]
    assert (result.status, part.error, part.public_error, part.done) == ("cancelled", *[ORPHAN_ERROR] * 2, True)
    assert ended.is_set()


async def test_a_tool_whose_timeout_is_longer_than_the_turn_gets_the_time_there_is(sessions: Sessions) -> None:
    @tool(timeout_seconds=600)
    async def quick() -> str:
        """Answer at once."""
        return "in time"

    runner = sessions.runner(ScriptedModel(ToolCall("quick"), "Done."), quick)
    result = await runner.run("Be quick", deadline=time.monotonic() + 60)
    assert [part.output for part in result.parts if isinstance(part, ToolPart)] == ["in time"]
    assert result.status == "complete"
