"""A team's code, a model or a store that misbehaves: the stream ends, and nothing stays held."""

import asyncio
import time
from dataclasses import replace

import pytest

from omniagent import Agent, InMemorySessionManager, Overrides, Query, RunContext, RunResult, ToolError, TurnHooks, tool
from omniagent.ai.context import Callbacks
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers import ProviderPool
from omniagent.ai.tools import OUTPUT_CHARS
from omniagent.messages import ToolPart
from omniagent.session.live import Change
from omniagent.testing import Gate, ScriptedModel, ToolCall
from tests.fixtures.answers import answer_of
from tests.fixtures.conversation import read
from tests.runner.sessions import QUICK, Sessions, until

EACH_TURN = replace(QUICK, context_max_turns=1)


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


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyError])
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


async def test_a_tool_errors_text_is_cut_like_an_output_and_encodable() -> None:
    @tool
    async def lookup() -> str:
        """Look something up."""
        raise ToolError("\ud800" + "x" * (OUTPUT_CHARS + 99))

    result = await Sessions().runner(ScriptedModel(ToolCall("lookup", {}), "Sorry."), lookup).run("Hello?")
    [part] = [part for part in result.parts if isinstance(part, ToolPart)]
    assert part.error == "?" + "x" * (OUTPUT_CHARS - 1) + "\n[cut: 100 more characters]"


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


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
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


def test_what_was_streamed_is_stored_when_the_event_loop_is_closed() -> None:
    """`asyncio.run` cancels every task that is left when its coroutine returns."""
    sessions, gate = Sessions(), Gate()

    async def main() -> None:
        await sessions.runner(ScriptedModel(["Hello", gate])).start("Hello?")
        await gate.reached()

    async def look() -> tuple[str, bool]:
        answer = await answer_of(sessions.session(), 1)
        return answer.text if answer else "", await sessions.are_free()

    asyncio.run(main())
    assert asyncio.run(look()) == ("Hello", True)
