"""What an outside review broke, in one process: each test fails without its fix."""

import asyncio
from dataclasses import replace

import pytest

from omniagent import InMemorySessionManager, Query, tool
from omniagent.ai.providers.llm_provider import ModelText
from omniagent.errors import (
    ModelStreamBroken,
    StorageRejected,
    StorageUnavailable,
    TooManyTurns,
)
from omniagent.messages import ToolPart
from omniagent.protocol import events
from omniagent.session.live import Change
from omniagent.testing import Gate, ScriptedModel, ToolCall
from omniagent.turns.engine.tool_step import MAX_CALLS_PER_STEP
from tests.runner.sessions import QUICK, Sessions


def counting() -> tuple[list[str], object]:
    runs: list[str] = []

    @tool
    async def refund(order: str) -> str:
        """Refund an order."""
        runs.append(order)
        return "refunded"

    return runs, refund


async def asked(model: ScriptedModel, requests: int) -> None:
    async with asyncio.timeout(60):
        while len(model.requests) < requests:  # noqa: ASYNC110 - the script has no event for it
            await asyncio.sleep(0.001)


class NeverBegins(InMemorySessionManager):
    """The user's message cannot be stored."""

    async def write(self, change: Change) -> bool:
        raise StorageUnavailable("no primary")


async def test_the_model_is_not_called_before_the_message_is_durable() -> None:
    sessions, model = Sessions(), ScriptedModel("Done.")
    failing = sessions.session(kind=NeverBegins)
    with pytest.raises(StorageUnavailable):
        await sessions.runner(model, session=failing).run(Query("Refund 42", "m1"))
    assert model.requests == []
    assert (await sessions.runner(model).run(Query("Refund 42", "m1"))).text == "Done."


async def test_no_refused_turn_has_cost_a_model_call() -> None:
    sessions = Sessions(replace(QUICK, max_running_turns_per_user=5))
    model = ScriptedModel(default=["Wait", Gate()])
    runners = [sessions.runner(model, session=sessions.session(f"s{n}")) for n in range(20)]
    outcomes = await asyncio.gather(*(runner.start("Hello?") for runner in runners), return_exceptions=True)
    assert sum(isinstance(outcome, TooManyTurns) for outcome in outcomes) == 15
    await asked(model, 5)
    await sessions.store.open_turns.finish()
    assert len(model.requests) == 5


async def test_the_dead_never_count_as_running() -> None:
    sessions = Sessions(replace(QUICK, max_running_turns_per_user=1))
    await sessions.die_after_begin("m1")
    sessions.pass_by()
    runner = sessions.runner(ScriptedModel("Here."), session=sessions.session("new"))
    assert (await runner.run("Hello?")).text == "Here."


async def test_a_replay_is_never_refused_by_a_limit() -> None:
    sessions = Sessions(replace(QUICK, max_running_turns_per_user=1))
    await sessions.runner(ScriptedModel("Once.")).run(Query("Hello?", "m1"))
    busy = sessions.runner(ScriptedModel(["Wait", Gate()]), session=sessions.session("busy"))
    await busy.start("Hello?")
    assert (await sessions.runner(ScriptedModel()).run(Query("Hello?", "m1"))).text == "Once."
    with pytest.raises(TooManyTurns):
        await sessions.runner(ScriptedModel()).run(Query("Another", "m2"))
    await sessions.store.open_turns.finish()


@pytest.mark.parametrize("ending", ["failed", "cancelled", "interrupted"])
@pytest.mark.parametrize(
    "asked", [Query("Refund 42", "m1"), Query("Refund 42", "m1", regenerate=True)], ids=["m1", "again"]
)
async def test_a_turn_that_was_closed_early_runs_no_tool_again(ending: str, asked: Query) -> None:
    sessions, (runs, refund) = Sessions(), counting()
    call, gate = ToolCall("refund", {"order": "42"}), Gate()
    model = ScriptedModel(
        ["One moment.", call], ["So", ModelStreamBroken("cut")] if ending == "failed" else ["So", gate]
    )
    runner = sessions.runner(model, refund)
    stream = await runner.start(Query("Refund 42", "m1"))
    if ending != "failed":
        await gate.reached()
        await runner.stop()
    closed = await stream.result()
    if ending == "interrupted":  # as a repair leaves it
        stored = sessions.store.sessions[sessions.session().key]
        stored.messages[-1] = replace(closed.message, status="interrupted")
    again = ScriptedModel(call if ending == "cancelled" and asked.regenerate else "Done.", default="Done.")
    result = await sessions.runner(again, refund).run(asked)
    assert (result.status, result.text.removeprefix("One moment.")) == ("complete", "Done.")
    if ending == "cancelled" and asked.regenerate:
        assert runs == ["42", "42"], "another answer is asked for"
        assert again.requests[0].messages[-1].role == "user"
        return
    assert runs == ["42"]
    [shown] = [part for part in again.requests[0].messages[-1].parts if isinstance(part, ToolPart)]
    assert shown.output == "refunded"
    assert [type(part).__name__ for part in result.parts] == [
        "StepPart",
        "TextPart",
        "ToolPart",
        "StepPart",
        "TextPart",
    ]


async def test_a_call_that_nobody_answered_is_asked_for_again() -> None:
    sessions = Sessions()

    @tool(approval=True)
    async def refund(order: str) -> str:
        """Refund an order."""
        return f"refunded {order}"

    call = ToolCall("refund", {"order": "42"})
    runner = sessions.runner(ScriptedModel(call, call, "Done."), refund)
    await runner.run(Query("Refund 42", "m1"))
    assert await runner.stop()
    waiting = await runner.run(Query("Refund 42", "m1"))
    assert waiting.status == "waiting"
    assert (await runner.reply(waiting.requests[0].approve()).result()).text == "Done."


async def test_more_tool_calls_than_a_step_may_have_are_refused_and_answered() -> None:
    runs, refund = counting()
    orders = [str(number) for number in range(MAX_CALLS_PER_STEP + 2)]
    calls = [ToolCall("refund", {"order": order}) for order in orders]
    result = await Sessions().runner(ScriptedModel(calls, "Done."), refund).run("Go")
    assert sorted(runs, key=int) == orders[:-2]
    assert result.tool_errors == 2
    assert all(part.done for part in result.parts if isinstance(part, ToolPart))


async def test_a_tool_that_ignores_its_cancellation_does_not_keep_the_turn_from_ending() -> None:
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

    sessions = Sessions()
    runner = sessions.runner(ScriptedModel(ToolCall("stubborn")), stubborn)
    stream = await runner.start("Go")
    await started.wait()
    await runner.stop()
    assert [event.type async for event in stream][-3:] == ["abort", "finish", "data-session"]
    assert (await stream.result()).status == "cancelled"
    leave.set()


async def test_an_answer_can_be_regenerated_by_any_of_its_ids_after_an_attempt_that_failed() -> None:
    sessions = Sessions()
    old = await sessions.runner(ScriptedModel("Old.")).run(Query("Hello?", "m1"))
    again = Query(regenerate=True, replaces=old.message_id)
    attempt = await sessions.runner(ScriptedModel(ModelStreamBroken("cut"))).run(again)
    for replaces in (old.message_id, attempt.message_id, "m1"):
        query = Query("Hello?", "m1", regenerate=True, replaces=replaces)
        assert (await sessions.runner(ScriptedModel("New.", default="New.")).run(query)).text == "New."


class SmallDocuments(InMemorySessionManager):
    """A store that refuses an answer with too much in it."""

    async def write(self, change: Change) -> bool:
        for message in (*change.inserted, *change.changed):
            if sum(len(part.model_dump_json()) for part in message.parts) > 150_000:
                raise StorageRejected("document too large")
        return await super().write(change)


async def test_an_answer_that_the_store_cannot_take_is_stored_as_failed_with_what_fits() -> None:
    sessions = Sessions()
    session = sessions.session(kind=SmallDocuments)
    model = ScriptedModel("x" * 250_000, default="Still here.")
    stream = sessions.runner(model, session=session).run_stream("Write a lot")
    *_, finish, stored, error = [event async for event in stream]
    result = await stream.result()
    assert (result.stored, result.message.status, len(result.text)) == (True, "failed", 100_000)
    # Its reader learns that, as after a reload.
    assert isinstance(finish, events.Finish)
    assert isinstance(stored, events.DataSession)
    assert (result.status, finish.finish_reason, stored.data["status"]) == ("failed", "error", "failed")
    assert (finish.message_metadata, error.type) == (result.message.metadata, "error")
    assert (await sessions.runner(model, session=session).run("Go on")).text == "Still here."


async def test_an_answer_without_bound_is_cut_and_the_session_goes_on() -> None:
    sessions = Sessions()
    deltas = [ModelText("word " * 200_000)] * 2 + [ModelText("word " * 199_950)] * 3  # two and one fill it
    model = ScriptedModel(deltas, default="Still here.")
    result = await sessions.runner(model).run(Query("Write for ever", "m1"))
    assert (result.status, result.metadata["errorCode"]) == ("failed", "answer_too_long")
    assert len(result.text) <= 3_000_100
    assert (await sessions.runner(model).run("Go on")).text == "Still here."
    replay = sessions.runner(ScriptedModel()).run_stream(Query("Write for ever", "m1"))
    assert [event.type async for event in replay][-3:] == ["finish", "data-session", "error"]


async def test_a_huge_tool_argument_becomes_an_error_and_every_frame_fits_into_the_chunk_log() -> None:
    runs, refund = counting()
    model = ScriptedModel([ToolCall("refund", {"order": "x" * 900_000})], "Sorry.")
    stream = await Sessions().runner(model, refund).start("Go")
    frames = [frame + b"\n\n" for chunk in [piece async for piece in stream.sse()] for frame in chunk.split(b"\n\n")]
    assert max(map(len, frames)) < 300_000
    assert runs == []
    assert (await stream.result()).status == "complete"


async def test_a_huge_tool_name_fails_the_answer_before_its_event() -> None:
    stream = await Sessions().runner(ScriptedModel(["One moment.", ToolCall("x" * 900_000)])).start("Go")
    frames = [frame async for frame in stream.sse()]
    assert max(map(len, frames)) < 300_000
    result = await stream.result()
    assert (result.status, result.metadata["errorCode"]) == ("failed", "model_stream_broken")
    assert result.text.startswith("One moment.")
