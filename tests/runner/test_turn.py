"""A turn of its own: its readers, its end, its callbacks."""

import asyncio
from typing import Any

import pytest

from omniagent import Agent, Callbacks, InMemorySessionManager, Overrides, RunContext, RunResult, TurnHooks
from omniagent.errors import StorageUnavailable, ToolError
from omniagent.messages import StepPart, ToolPart
from omniagent.session.live import Change
from omniagent.testing import Gate, ScriptedModel, ToolCall
from tests.fixtures.conversation import read, seen
from tests.fixtures.live_turns import enqueue
from tests.fixtures.package_log import logged
from tests.runner.scenarios import add, lookup
from tests.runner.sessions import Sessions, texts_of

ADD = ToolCall("add", {"a": 1, "b": 2})


class HeldBack(InMemorySessionManager):
    """A session whose answers are written only when the test lets them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.answer = Gate()
        self.failures = 0
        """How often storing the answer fails before it works."""

    async def write(self, change: Change) -> bool:
        if change.before.running is not None and change.after.running is None:
            await self.answer.wait()
            if self.failures:
                self.failures -= 1
                raise StorageUnavailable("no primary")
        return await super().write(change)


@pytest.fixture
def held(sessions: Sessions) -> HeldBack:
    session = sessions.session(kind=HeldBack)
    assert isinstance(session, HeldBack)
    return session


async def test_any_number_of_readers_get_the_same_bytes_whenever_they_come(sessions: Sessions) -> None:
    _, turn, gate = await sessions.answering()
    early = [asyncio.create_task(read(turn)) for _ in range(3)]
    left = asyncio.create_task(turn.result())
    await asyncio.sleep(0)
    late = asyncio.create_task(read(turn))
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    gate.set()
    assert (await turn.result()).status == "complete", "a reader that leaves does not stop it"
    first, *others = [await task for task in (*early, late)]
    assert others == [first] * 3
    assert await read(turn) == first


async def test_finish_is_sent_only_once_the_answer_is_stored(sessions: Sessions, held: HeldBack) -> None:
    turn = await sessions.runner(ScriptedModel("Hello."), session=held).start("Hi")
    reading = asyncio.create_task(seen(turn, "finish"))
    await held.answer.reached()
    await seen(turn, "finish-step")
    assert sessions.store.sessions[held.key].messages == []
    assert not reading.done()
    held.answer.set()
    await reading
    assert [message.role for message in sessions.messages] == ["user", "assistant"]


async def test_cancelling_run_stores_what_there_is_before_the_cancellation_goes_on(sessions: Sessions) -> None:
    gate = Gate()
    runner = sessions.runner(ScriptedModel([ADD], ["So", gate]), add)
    running = asyncio.create_task(runner.run("1 + 2?"))
    await gate.reached()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    answer = sessions.messages[-1]
    assert answer.status == "cancelled"
    assert [type(part) for part in answer.parts[:3]] == [StepPart, ToolPart, StepPart]


async def test_a_write_that_has_begun_is_not_cancelled(sessions: Sessions, held: HeldBack) -> None:
    running = asyncio.create_task(sessions.runner(ScriptedModel("Hello."), session=held).run("Hi"))
    await held.answer.reached()
    running.cancel()
    held.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sessions.history[-1] == ("", "Hello.", "complete")


async def test_storage_that_fails_for_a_while_delays_the_answer_and_loses_nothing(
    sessions: Sessions, held: HeldBack
) -> None:
    held.failures = 2
    held.answer.set()
    assert (await sessions.runner(ScriptedModel("Hello."), session=held).run("Hi")).stored
    assert (held.failures, sessions.history[-1]) == (0, ("", "Hello.", "complete"))


async def test_an_answer_is_stored_although_its_reply_is_lost_and_a_message_gets_in_line(sessions: Sessions) -> None:
    class Unconfirmed(InMemorySessionManager):
        async def write(self, change: Change) -> bool:
            is_written = await super().write(change)
            if is_written and change.before.running is not None and change.after.running is None:
                await enqueue(sessions.session(), "Again?", "m2")
                raise StorageUnavailable("the reply was lost")
            return is_written

    model = ScriptedModel("Hello.", "And hello.")
    assert (await sessions.runner(model, session=sessions.session(kind=Unconfirmed)).run("Hi")).stored
    queued = await sessions.runner(model).take_up()
    assert queued is not None
    assert await texts_of(queued) == ["And hello."]
    assert [text for _, text, _ in sessions.history] == ["Hi", "Hello.", "Again?", "And hello."]


async def test_callbacks_are_told_what_happens(sessions: Sessions) -> None:
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
    agent = Agent("helper", "", [add, lookup], callbacks=callbacks)
    model = ScriptedModel(ADD, ToolCall("lookup", {"city": "X"}), "Done.")
    await sessions.runner(model, agent=agent, hooks=TurnHooks(on_end=on_end)).run_stream("Go").ended()
    assert told == [
        ("start", "Go"),
        ("add starts", {"a": 1, "b": 2}),
        ("add ends", 3),
        ("lookup starts", {"city": "X"}),
        ("lookup ends", ToolError),
        ("finish", ("complete", "Done.")),
        ("end", True),
    ]
    [context] = seen_by
    assert (context.user, context.session_id, context.turn_number) == ("ada", "chat", 1)


async def test_callbacks_that_raise_change_nothing(sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    async def fails(*_: Any) -> None:
        raise RuntimeError("secret of the team")

    callbacks = Callbacks(on_start=fails, on_tool_start=fails, on_tool_end=fails, on_finish=fails)
    agent = Agent("helper", "", [add], callbacks=callbacks)
    stream = sessions.runner(ScriptedModel(ADD, "Three."), agent=agent, hooks=TurnHooks(on_end=fails)).run_stream("Go")
    result = await stream.result()
    await stream.ended()
    assert (result.status, result.text) == ("complete", "Three.")
    assert logged(caplog) == ["callback failed"] * 5


async def test_the_agents_model_and_overrides_reach_the_request(sessions: Sessions) -> None:
    overrides = Overrides(model="llama3", temperature=0.5, max_output_tokens=99, extra={"user": "ada"})
    model = ScriptedModel("Hello.")
    result = await sessions.runner(model, agent=Agent("helper", "", overrides=overrides)).run("Hi")
    assert (model.requests[0].overrides, result.message.metadata["model"]) == (overrides, "llama3")
