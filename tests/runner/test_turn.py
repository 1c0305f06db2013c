"""A turn of its own: its readers, its end, its callbacks."""

import asyncio
from typing import Any

import pytest

from omniagent import Agent, Callbacks, RunContext, RunResult
from omniagent.ai.providers.llm_provider import Overrides
from omniagent.errors import StorageUnavailable, ToolError
from omniagent.session.live import Change
from tests.fixtures.conversation import Conversation, HeldBack, read, seen
from tests.fixtures.package_log import logged
from tests.runner.scenarios import add, lookup

HELLO = "[echo:Hello there.]"


async def test_any_number_of_readers_get_the_same_bytes_whenever_they_come(conversation: Conversation) -> None:
    turn = await conversation.start("[stall] [echo:one two three four]")
    early = [asyncio.create_task(read(turn)) for _ in range(3)]
    await seen(turn, "text-delta")
    late = asyncio.create_task(read(turn))
    await conversation.stop()
    await turn.result()
    first, *others = [await task for task in (*early, late)]
    assert others == [first] * 3
    assert await read(turn) == first


async def test_a_reader_that_is_cancelled_does_not_stop_the_turn(conversation: Conversation) -> None:
    turn = await conversation.start("[slow:1] [echo:one two three four]")
    reader = asyncio.create_task(turn.result())
    await seen(turn, "text-delta")
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (await turn.result()).status == "complete"


async def test_finish_is_sent_only_once_the_answer_is_stored(conversation: Conversation) -> None:
    session = HeldBack(conversation)
    turn = await conversation.start(HELLO, session=session)
    await session.writing.wait()
    reading = asyncio.create_task(seen(turn, "finish"))
    await seen(turn, "finish-step")
    assert conversation.messages == []
    assert not reading.done()
    session.let_go.set()
    await reading
    await seen(turn, "finish")
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]


async def test_cancelling_run_stores_what_there_is_before_the_cancellation_goes_on(
    conversation: Conversation,
) -> None:
    asked = conversation.but(agent=Agent("helper", "", [add]))
    left, asked_before = asked.model.disconnects, asked.model.count
    session = HeldBack(asked)
    session.let_go.set()
    running = asyncio.create_task(asked.runner(session=session).run('[tool:add {"a": 1, "b": 2}] [then] [stall]'))
    await session.begun.wait()
    await asked.model.until(lambda model: model.count == asked_before + 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asked.answer["status"] == "cancelled"
    assert [part["type"] for part in asked.answer["parts"]][:3] == ["step-start", "tool", "step-start"]
    await asked.model.until(lambda model: model.disconnects > left)


async def test_a_write_that_has_begun_is_not_cancelled(conversation: Conversation) -> None:
    session = HeldBack(conversation)
    running = asyncio.create_task(conversation.runner(session=session).run(HELLO))
    await session.writing.wait()
    running.cancel()
    session.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert conversation.answer["status"] == "complete"


async def test_callbacks_are_told_what_happens(conversation: Conversation) -> None:
    told: list[tuple[str, Any]] = []
    seen_by: list[RunContext] = []

    async def on_start(context: RunContext) -> None:
        seen_by.append(context)
        told.append(("start", context.query))

    async def on_tool_start(context: RunContext, name: str, arguments: Any) -> None:
        told.append((f"{name} starts", arguments))

    async def on_tool_end(context: RunContext, name: str, result: Any) -> None:
        told.append((f"{name} ends", type(result) if isinstance(result, ToolError) else result))

    async def on_finish(context: RunContext, result: RunResult) -> None:
        told.append(("finish", (result.status, result.text)))

    async def on_end(result: RunResult) -> None:
        told.append(("end", result.stored))

    callbacks = Callbacks(on_start=on_start, on_tool_start=on_tool_start, on_tool_end=on_tool_end, on_finish=on_finish)
    asked = conversation.but(agent=Agent("helper", "", [add, lookup], callbacks=callbacks))
    prompt = '[tool:add {"a": 1, "b": 2}] [then] [tool:lookup {"city": "X"}] [then] [echo:Done.]'
    stream = asked.runner(on_end=on_end).run_stream(prompt)
    await stream.ended()
    assert told == [
        ("start", prompt),
        ("add starts", {"a": 1, "b": 2}),
        ("add ends", 3),
        ("lookup starts", {"city": "X"}),
        ("lookup ends", ToolError),
        ("finish", ("complete", "Done.")),
        ("end", True),
    ]
    [context] = seen_by
    assert (context.user, context.session_id, context.turn_number) == (asked.user, asked.session_id, 1)


async def test_callbacks_that_raise_change_nothing(
    conversation: Conversation, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: Any) -> None:
        raise RuntimeError("secret of the team")

    callbacks = Callbacks(on_start=fails, on_tool_start=fails, on_tool_end=fails, on_finish=fails)
    asked = conversation.but(agent=Agent("helper", "", [add], callbacks=callbacks))
    stream = asked.runner(on_end=fails).run_stream('[tool:add {"a": 1, "b": 2}] [then] [echo:Three.]')
    result = await stream.result()
    await stream.ended()
    assert (result.status, result.text) == ("complete", "Three.")
    assert logged(caplog) == ["callback failed"] * 5


async def test_the_agents_model_and_overrides_reach_the_request(conversation: Conversation) -> None:
    overrides = Overrides(model="llama3", temperature=0.5, max_output_tokens=99, extra={"user": "ada"})
    await conversation.but(agent=Agent("helper", "", overrides=overrides)).ask(HELLO)
    body = conversation.model.requests[-1].body
    asked_for = (body["model"], body["temperature"], body["max_output_tokens"], body["user"])
    assert asked_for == ("llama3", 0.5, 99, "ada")
    assert conversation.answer["metadata"]["model"] == "llama3"


async def test_storage_that_fails_for_a_while_delays_the_answer_and_loses_nothing(
    conversation: Conversation,
) -> None:
    class Flaky(HeldBack):
        attempts = 0

        async def write(self, change: Change) -> bool:
            self.attempts += change.before.running is not None
            if 0 < self.attempts < 3:
                raise StorageUnavailable("no primary")
            return await super().write(change)

    session = Flaky(conversation)
    session.let_go.set()
    turn = await conversation.start(HELLO, session=session)
    assert (await turn.result()).stored
    assert (session.attempts, conversation.answer["status"]) == (3, "complete")
