"""A team's code, a model or a store that misbehaves: the stream ends, and nothing stays held."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from omniagent import Agent, InMemorySessionManager, Overrides, Query, RunContext, RunResult, ToolError, TurnHooks, tool
from omniagent.ai.context import Callbacks
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers.model_calls import ProviderPool
from omniagent.ai.tools import OUTPUT_CHARS
from omniagent.messages import ToolPart
from omniagent.protocol import sse
from omniagent.session.live import Change
from omniagent.testing import Gate, MemoryRegistry, ScriptedModel, ToolCall
from omniagent.turns.registry import Chunk
from tests.fixtures.answers import answer_of
from tests.fixtures.conversation import read
from tests.runner.sessions import QUICK, Polled, Sessions, until

EACH_TURN = replace(QUICK, context_max_turns=1)


class Panic(BaseException):
    """As extensions written in Rust raise it."""


async def ended(sessions: Sessions) -> None:
    """Wait until every turn of the test has ended."""

    async def none_runs() -> bool:
        return not len(sessions.store.open_turns)

    await until(none_runs)


async def test_a_summary_model_that_does_not_exist_costs_only_the_summary() -> None:
    sessions = Sessions(EACH_TURN)
    pool = ProviderPool(registrations={"scripted": ScriptedModel(default="Hi")})
    agent = Agent("helper", "", model="scripted", summary=Overrides(model="unheard-of"))
    runner = TurnOperator(agent, sessions.session(), providers=pool, registry=sessions.registry)
    for number in range(3):
        stream = await runner.start(f"Hello {number}?")
        await read(stream)
        await stream.ended()
    assert await sessions.are_free()


async def test_the_stream_ends_with_an_error_if_storing_the_answer_raises() -> None:
    class Broken(InMemorySessionManager):
        async def write(self, change: Change) -> bool:
            if change.inserted:
                raise ZeroDivisionError("secret")
            return await super().write(change)

    sessions = Sessions()
    session = Broken("ada", "chat", store=sessions.store, settings=sessions.settings)
    stream = await sessions.runner(ScriptedModel("Hello."), session=session).start("Hello?")
    assert [event.type async for event in stream][-1] == "error"
    result = await stream.result()
    assert (result.stored, result.error and result.error.code) == (False, "internal_error")
    await stream.ended()
    sessions.pass_by()
    finished = await sessions.runner(ScriptedModel()).take_up()
    assert finished is not None
    assert (await finished.result()).text == "Hello."


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyError, Panic])
@pytest.mark.parametrize("where", ["deps", "instructions", "provider"])
async def test_a_turn_fails_in_order_whatever_its_agent_or_provider_raises(
    where: str, error: type[BaseException]
) -> None:
    sessions = Sessions()

    def deps() -> None:
        if where == "deps":
            raise error

    def instructions(_: RunContext) -> str:
        if where == "instructions":
            raise error
        return ""

    model = ScriptedModel(["Well", error()])
    agent = Agent("helper", instructions, deps=deps)
    runner = TurnOperator(agent, sessions.session(), provider=model, registry=sessions.registry)
    stream = await runner.start("Go")
    result = await stream.result()
    await stream.ended()
    assert (result.status, result.finish_reason) == ("failed", "error")
    assert result.text.endswith(agent.fallback)
    assert await sessions.are_free()


async def test_a_callback_that_hangs_does_not_keep_the_process_past_its_time() -> None:
    sessions, results = Sessions(), list[RunResult]()

    async def on_finish(*_: object) -> None:
        await asyncio.Event().wait()

    async def on_end(result: RunResult) -> None:
        results.append(result)

    runner = TurnOperator(
        Agent("helper", "", callbacks=Callbacks(on_finish=on_finish)),
        sessions.session(),
        provider=ScriptedModel("Hi"),
        registry=sessions.registry,
        hooks=TurnHooks(on_end=on_end),
    )
    stream = await runner.start("Hello?", deadline=time.monotonic() + 1.0)
    async with asyncio.timeout(60):
        await stream.ended()
    assert len(results) == 1
    assert await sessions.are_free()


async def test_an_output_that_cannot_be_rendered_fails_its_call_and_not_the_turn() -> None:
    class Silent:
        def __str__(self) -> str:
            raise RuntimeError("secret")

    @tool
    async def lookup() -> Any:
        """Look something up."""
        return Silent()

    model = ScriptedModel(ToolCall("lookup", {}), "It failed.", tools_may_crash=True)
    result = await Sessions().runner(model, lookup).run("Hello?")
    [part] = [part for part in result.parts if isinstance(part, ToolPart)]
    assert (result.status, part.error) == ("complete", "lookup failed. Try something else or tell the user.")


async def test_a_tool_errors_text_is_cut_like_an_output_and_encodable() -> None:
    @tool
    async def lookup() -> str:
        """Look something up."""
        raise ToolError("\ud800" + "x" * (OUTPUT_CHARS + 99))

    result = await Sessions().runner(ScriptedModel(ToolCall("lookup", {}), "Sorry."), lookup).run("Hello?")
    [part] = [part for part in result.parts if isinstance(part, ToolPart)]
    assert part.error == "?" + "x" * (OUTPUT_CHARS - 1) + "\n[cut: 100 more characters]"


async def test_what_is_emitted_while_the_answer_is_stored_or_later_reaches_neither_readers_nor_store() -> None:
    contexts = list[RunContext[Any]]()

    class Emitting(InMemorySessionManager):
        async def write(self, change: Change) -> bool:
            if change.inserted:
                contexts[0].emit("late", 1)
            return await super().write(change)

    async def on_start(context: RunContext[Any]) -> None:
        contexts.append(context)
        context.emit("early", 1)

    sessions = Sessions()
    session = Emitting("ada", "chat", store=sessions.store, settings=QUICK)
    agent = Agent("helper", "", callbacks=Callbacks(on_start=on_start))
    runner = TurnOperator(agent, session, provider=ScriptedModel("Hi"), registry=sessions.registry)
    stream = await runner.start("Hello?")
    await stream.ended()
    contexts[0].emit("later", 1)
    frames = await read(stream)
    assert b"data-early" in frames
    assert b"data-late" not in frames


async def test_the_end_of_the_process_does_not_wait_for_a_summary() -> None:
    sessions = Sessions(EACH_TURN)
    runner = sessions.runner(ScriptedModel(default="Hi", summary=Gate()))
    for number in range(3):
        await (await runner.start(f"Hello {number}?")).result()
    await sessions.store.open_turns.finish()
    assert await sessions.are_free()


@pytest.mark.parametrize("names_answer", [True, False])
async def test_a_stop_of_a_regeneration_names_the_message_or_the_replaced_answer(names_answer: bool) -> None:
    sessions, gate = Sessions(), Gate()
    runner = sessions.runner(ScriptedModel("First.", ["Sec", gate]))
    first = await runner.run(Query("Hello?", "m1"))
    stream = await runner.start(Query(message_id="m1", regenerate=True))
    await gate.reached()
    assert not await runner.stop("m")
    assert await runner.stop(first.message_id if names_answer else "m1")
    assert (await stream.result()).status == "cancelled"


async def test_a_late_follower_gets_the_answer_of_its_own_turn() -> None:
    sessions, gate = Sessions(), Gate()
    runner = sessions.runner(ScriptedModel("First.", gate, "Next."))
    await runner.run(Query("Hello?", "m1"))
    await runner.start(Query(message_id="m1", regenerate=True))
    followed = await runner.resume()
    assert followed is not None
    await runner.stop()
    await ended(sessions)
    await runner.run("And now?")
    assert (await followed.result()).status == "cancelled"


async def test_a_tool_that_cancels_itself_fails_alone() -> None:
    @tool
    async def cancel() -> str:
        """Cancel the task that runs the tool."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "never"

    result = await Sessions().runner(ScriptedModel(ToolCall("cancel"), "Done."), cancel).run("Go")
    assert (result.status, result.text, result.tool_errors) == ("complete", "Done.", 1)


@pytest.mark.parametrize("error", [SystemExit, StopIteration, asyncio.CancelledError, Panic])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_fails_alone_whatever_it_raises(is_async: bool, error: type[BaseException]) -> None:
    loop, is_raised = asyncio.get_running_loop(), asyncio.Event()

    def fail() -> str:
        """Fail."""
        loop.call_soon_threadsafe(is_raised.set)
        raise error

    async def fail_async() -> str:
        """Fail."""
        return fail()

    @tool
    async def work() -> str:
        """Work on after the other has failed."""
        await is_raised.wait()
        await asyncio.sleep(0)
        return "worked"

    failing = tool(name="fail")(fail_async if is_async else fail)
    model = ScriptedModel([ToolCall("fail"), ToolCall("work")], "Done.", tools_may_crash=True)
    result = await Sessions().runner(model, failing, work).run("Go")
    outputs = [part.output for part in result.parts if isinstance(part, ToolPart)]
    assert (result.status, outputs) == ("complete", [None, "worked"])


async def test_code_that_ignores_the_stop_leads_to_no_model_call_and_no_tool() -> None:
    sessions, is_waiting = Sessions(), asyncio.Event()

    async def on_start(_: object) -> None:
        is_waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    model = ScriptedModel()
    agent = Agent("helper", "", callbacks=Callbacks(on_start=on_start))
    runner = TurnOperator(agent, sessions.session(), provider=model, registry=sessions.registry)
    stream = await runner.start("Hello?")
    await is_waiting.wait()
    await runner.stop()
    assert (await stream.result()).status == "cancelled"
    assert not model.requests


async def test_two_tool_calls_of_one_id_are_refused_before_either_is_run() -> None:
    runs = list[int]()

    @tool
    async def charge(number: int) -> str:
        """Charge."""
        runs.append(number)
        return "charged"

    calls = [ToolCall("charge", {"number": number}, "same") for number in (1, 2)]
    result = await Sessions().runner(ScriptedModel(calls), charge).run("Go")
    assert (result.status, runs) == ("failed", [])


@pytest.mark.parametrize("moment", ["answering", "storing", "ending"])
def test_what_was_streamed_is_stored_when_the_event_loop_is_closed(moment: str) -> None:
    """`asyncio.run` cancels every task that is left when its coroutine returns."""
    sessions = Sessions()
    reached = asyncio.Event()

    async def reach(now: str) -> None:
        if now == moment:
            reached.set()
            await asyncio.sleep(0)

    class Slow(InMemorySessionManager):
        async def write(self, change: Change) -> bool:
            if change.inserted:
                await reach("storing")
            return await super().write(change)

    class Registry(Polled):
        async def append(self, session: str, journal: str, chunk: Chunk) -> bool:
            if sse.DONE_LINE in chunk.lines:
                await reach("ending")
            return await MemoryRegistry.append(self, session, journal, chunk)

    async def main() -> None:
        sessions.registry = Registry()
        gate = Gate()
        session = Slow("ada", "chat", store=sessions.store, settings=QUICK)
        await sessions.runner(ScriptedModel(["Hello", gate]), session=session).start("Hello?")
        await gate.reached()
        if moment != "answering":
            gate.set()
            await reached.wait()

    async def look() -> tuple[str, bool]:
        answer = await answer_of(sessions.session(), 1)
        return answer.text if answer else "", await sessions.are_free()

    asyncio.run(main())
    assert asyncio.run(look()) == ("Hello", True)
