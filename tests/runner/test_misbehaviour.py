"""A team's code, a model or a store that misbehaves: the stream ends, and nothing stays held."""

import asyncio
import time
from dataclasses import replace

import pytest

from omniagent import Agent, InMemorySessionManager, Overrides, Query, RunContext, RunResult, ToolError, TurnHooks, tool
from omniagent.ai.context import Callbacks
from omniagent.ai.providers import ProviderPool
from omniagent.ai.tools import OUTPUT_CHARS
from omniagent.app.sweep import finish
from omniagent.errors import ModelStreamBroken, StorageUnavailable
from omniagent.messages import ToolPart
from omniagent.session.live import Change
from omniagent.testing import Gate, ScriptedModel, ToolCall
from omniagent.turns.engine import ending
from tests.fixtures.conversation import QUICK
from tests.fixtures.live_turns import answer_of, begin_turn
from tests.runner.sessions import REFUND, Refunds, Sessions

EACH_TURN = replace(QUICK, context_max_turns=1)


async def test_a_summary_model_that_does_not_exist_costs_only_the_summary(sessions: Sessions) -> None:
    sessions.settings = EACH_TURN
    pool = ProviderPool(registrations={"scripted": ScriptedModel(default="Hi")})
    agent = Agent("helper", "", model="scripted", summary=Overrides(model="unheard-of"))
    runner = sessions.runner(None, agent=agent, providers=pool)
    for number in range(3):
        stream = await runner.start(f"Hello {number}?")
        assert (await stream.result()).status == "complete"
        await stream.ended()


async def test_the_stream_ends_with_an_error_if_storing_the_answer_raises(sessions: Sessions) -> None:
    class Broken(InMemorySessionManager):
        async def write(self, change: Change) -> bool:
            if change.inserted:
                raise ZeroDivisionError("secret")
            return await super().write(change)

    stream = await sessions.runner(ScriptedModel("Hello."), session=sessions.session(kind=Broken)).start("Hello?")
    assert [event.type async for event in stream][-1] == "error"
    result = await stream.result()
    assert (result.stored, result.error and result.error.code) == (False, "internal_error")
    await stream.ended()
    sessions.pass_by()
    finished = await sessions.runner(ScriptedModel()).take_up()
    assert finished is not None
    assert (await finished.result()).text == "Hello."


async def test_a_swept_turn_gives_up_an_answer_that_cannot_be_stored(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a server would never end while MongoDB is down: it waits for its turns."""

    class Unreachable(InMemorySessionManager):
        async def write(self, change: Change) -> bool:
            if change.inserted:
                raise StorageUnavailable
            return await super().write(change)

    monkeypatch.setattr(ending, "STORE_SECONDS_WITHOUT_DEADLINE", 0.05)
    await begin_turn(sessions.session(), "Hello?", is_dead=True)
    async with asyncio.timeout(60):
        await finish(sessions.runner(ScriptedModel("Hello."), session=sessions.session(kind=Unreachable)))
    sessions.pass_by()
    assert await finish(sessions.runner(ScriptedModel())) == 1
    assert sessions.history[-1] == ("", "Hello.", "complete")


async def test_the_model_is_not_called_before_the_message_is_durable(sessions: Sessions) -> None:
    class NeverBegins(InMemorySessionManager):
        async def write(self, change: Change) -> bool:
            raise StorageUnavailable("no primary")

    model, query = ScriptedModel("Done."), Query("Refund 42", "m1")
    with pytest.raises(StorageUnavailable):
        await sessions.runner(model, session=sessions.session(kind=NeverBegins)).run(query)
    assert model.requests == []
    assert (await sessions.runner(model).run(query)).text == "Done."


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyError])
@pytest.mark.parametrize("where", ["deps", "instructions", "provider"])
async def test_a_turn_fails_in_order_whatever_its_agent_or_provider_raises(
    sessions: Sessions, where: str, error: type[BaseException]
) -> None:
    def deps() -> None:
        if where == "deps":
            raise error

    def instructions(_: RunContext) -> str:
        if where == "instructions":
            raise error
        return ""

    agent = Agent("helper", instructions, deps=deps)
    result = await sessions.runner(ScriptedModel(["Well", error()]), agent=agent).run("Go")
    assert (result.status, result.finish_reason) == ("failed", "error")
    assert result.text.endswith(agent.fallback)


async def test_a_callback_that_hangs_does_not_keep_the_process_past_its_time(sessions: Sessions) -> None:
    results = list[RunResult]()

    async def on_finish(*_: object) -> None:
        await asyncio.Event().wait()

    async def on_end(result: RunResult) -> None:
        results.append(result)

    agent = Agent("helper", "", callbacks=Callbacks(on_finish=on_finish))
    runner = sessions.runner(ScriptedModel("Hi"), agent=agent, hooks=TurnHooks(on_end=on_end))
    stream = await runner.start("Hello?", deadline=time.monotonic() + 1.0)
    async with asyncio.timeout(60):
        await stream.ended()
    assert len(results) == 1


async def test_a_tool_errors_text_is_cut_like_an_output_and_encodable(sessions: Sessions) -> None:
    @tool
    async def lookup() -> str:
        """Look something up."""
        raise ToolError("\ud800" + "x" * (OUTPUT_CHARS + 99))

    result = await sessions.runner(ScriptedModel(ToolCall("lookup", {}), "Sorry."), lookup).run("Hello?")
    [part] = [part for part in result.parts if isinstance(part, ToolPart)]
    assert part.error == "?" + "x" * (OUTPUT_CHARS - 1) + "\n[cut: 100 more characters]"


async def test_the_end_of_the_process_does_not_wait_for_a_summary(sessions: Sessions) -> None:
    sessions.settings = EACH_TURN
    runner = sessions.runner(ScriptedModel(default="Hi", summary=Gate()))
    for number in range(3):
        await (await runner.start(f"Hello {number}?")).result()
    await sessions.store.open_turns.finish()


@pytest.mark.parametrize("names_answer", [True, False])
async def test_a_stop_of_a_regeneration_names_the_message_or_the_replaced_answer(
    sessions: Sessions, names_answer: bool
) -> None:
    gate = Gate()
    runner = sessions.runner(ScriptedModel("First.", ["Sec", gate]))
    first = await runner.run(Query("Hello?", "m1"))
    stream = await runner.start(Query(message_id="m1", regenerate=True))
    await gate.reached()
    assert not await runner.stop("m")
    assert await runner.stop(first.message_id if names_answer else "m1")
    assert (await stream.result()).status == "cancelled"


async def test_an_answer_can_be_regenerated_by_any_of_its_ids_after_an_attempt_that_failed(sessions: Sessions) -> None:
    old = await sessions.runner(ScriptedModel("Old.")).run(Query("Hello?", "m1"))
    again = Query(regenerate=True, replaces=old.message_id)
    attempt = await sessions.runner(ScriptedModel(ModelStreamBroken("cut"))).run(again)
    for replaces in (old.message_id, attempt.message_id, "m1"):
        query = Query("Hello?", "m1", regenerate=True, replaces=replaces)
        assert (await sessions.runner(ScriptedModel("New.", default="New.")).run(query)).text == "New."


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_fails_alone_whatever_it_raises(
    sessions: Sessions, is_async: bool, error: type[BaseException]
) -> None:
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
    result = await sessions.runner(model, failing, work).run("Go")
    outputs = [part.output for part in result.parts if isinstance(part, ToolPart)]
    assert (result.status, outputs) == ("complete", [None, "worked"])


async def test_a_tool_that_ignores_its_cancellation_does_not_keep_the_turn_from_ending(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omniagent.turns.engine.turn.STOP_SECONDS", 0.01)
    started, leave = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Never give up."""
        started.set()
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                continue
        return "left"

    runner = sessions.runner(ScriptedModel(ToolCall("stubborn")), stubborn)
    stream = await runner.start("Go")
    await started.wait()
    await runner.stop()
    assert [event.type async for event in stream][-3:] == ["abort", "finish", "data-session"]
    assert (await stream.result()).status == "cancelled"
    leave.set()


async def test_two_tool_calls_of_one_id_are_refused_before_either_is_run(sessions: Sessions) -> None:
    refunds = Refunds(approval=False)
    calls = [ToolCall("refund", {"order": order}, "same") for order in ("1", "2")]
    result = await sessions.runner(ScriptedModel(calls), refunds.tool).run("Go")
    assert (result.status, refunds.orders) == ("failed", [])


@pytest.mark.parametrize("ending", ["failed", "cancelled", "interrupted"])
@pytest.mark.parametrize("regenerate", [False, True], ids=["m1", "again"])
async def test_a_turn_that_was_closed_early_runs_no_tool_again(
    sessions: Sessions, ending: str, regenerate: bool
) -> None:
    refunds, gate, query = Refunds(approval=False), Gate(), Query("Refund 42", "m1")
    model = ScriptedModel(
        ["One moment.", REFUND], ["So", ModelStreamBroken("cut")] if ending == "failed" else ["So", gate]
    )
    runner = sessions.runner(model, refunds.tool)
    stream = await runner.start(query)
    if ending != "failed":
        await gate.reached()
        await runner.stop()
    closed = await stream.result()
    if ending == "interrupted":  # as a repair leaves it
        stored = sessions.store.sessions[sessions.session().key]
        stored.messages[-1] = replace(closed.message, status="interrupted")
    is_other_answer = ending == "cancelled" and regenerate
    again = ScriptedModel(REFUND if is_other_answer else "Done.", default="Done.")
    result = await sessions.runner(again, refunds.tool).run(replace(query, regenerate=regenerate))
    assert (result.status, result.text.removeprefix("One moment.")) == ("complete", "Done.")
    assert refunds.orders == (["42", "42"] if is_other_answer else ["42"])
    if is_other_answer:
        assert again.requests[0].messages[-1].role == "user"
        return
    [shown] = [part for part in again.requests[0].messages[-1].parts if isinstance(part, ToolPart)]
    assert shown.output == "refunded 42"
    assert [part.type for part in result.parts] == ["step-start", "text", "tool", "step-start", "text"]


async def test_the_steps_of_an_earlier_answer_count_in_no_process(sessions: Sessions) -> None:
    """They are kept, not made: not by the process that answers again, nor by the one that goes on after its death."""
    refunds, gate = Refunds(approval=False), Gate()
    model = ScriptedModel(REFUND, ModelStreamBroken("cut"), ["Hal", gate])
    assert (await sessions.runner(model, refunds.tool).run(Query("Refund 42", "m1"))).status == "failed"
    slow = await sessions.runner(model, refunds.tool).start(Query("Refund 42", "m1"))
    await gate.reached()
    await sessions.polled()
    sessions.pass_by()
    taken = await sessions.runner(ScriptedModel("Done."), refunds.tool).take_up()
    assert taken is not None
    answer = (await taken.result()).message
    assert ("models" in answer.metadata, answer.metadata["stepCount"], len(refunds.orders)) == (False, 1, 1)
    gate.set()
    await slow.ended()


async def test_a_call_that_nobody_answered_is_asked_for_again(sessions: Sessions) -> None:
    runner = sessions.runner(ScriptedModel(REFUND, REFUND, "Done."), Refunds().tool)
    await runner.run(Query("Refund 42", "m1"))
    assert await runner.stop()
    waiting = await runner.run(Query("Refund 42", "m1"))
    assert waiting.status == "waiting"
    assert (await runner.reply(waiting.requests[0].approve()).result()).text == "Done."


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
