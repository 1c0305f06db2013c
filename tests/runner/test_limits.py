"""What is refused or cut before it does harm: messages, turns, calls and answers without bound."""

import asyncio
from dataclasses import replace

import pytest

from omniagent import InMemorySessionManager, Query
from omniagent.ai.providers.llm_provider import ModelText
from omniagent.errors import InvalidRequest, StorageRejected, TooManyTurns
from omniagent.messages import ToolPart
from omniagent.protocol import events
from omniagent.session.live import Change
from omniagent.testing import Gate, ScriptedModel, ToolCall
from omniagent.turns.engine.tool_step import MAX_CALLS_PER_STEP
from tests.fixtures.conversation import QUICK
from tests.fixtures.live_turns import begin_turn
from tests.runner.sessions import Refunds, Sessions, until

TOO_LONG = "x" * (QUICK.max_message_chars + 1)
BAD_IDS = ("a b", "a/b", "é", "x" * 129, "a:b", "a\n", ".", "..", ".a")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        *((Query(text), "The message is empty.") for text in ("", "   ", "\n")),
        (Query(TOO_LONG), f"The message is longer than {QUICK.max_message_chars} characters."),
        (Query("Hello", busy="later"), "busy"),  # type: ignore[arg-type]
        *((Query("Hello", message_id), "id must be 1 to 128") for message_id in BAD_IDS),
    ],
)
async def test_a_message_that_is_refused_leaves_nothing(query: Query, reason: str) -> None:
    sessions, model = Sessions(), ScriptedModel()
    runner = sessions.runner(model)
    for send in (runner.run, runner.accept):
        with pytest.raises(InvalidRequest, match=reason):
            await send(query)
    assert (model.requests, sessions.store.sessions) == ([], {})


def test_a_session_id_is_a_plain_token() -> None:
    for session_id in BAD_IDS:
        with pytest.raises(InvalidRequest):
            Sessions().session(session_id)


async def test_no_refused_turn_has_cost_a_model_call() -> None:
    sessions = Sessions(replace(QUICK, max_running_turns_per_user=5))
    model = ScriptedModel(default=["Wait", Gate()])
    runners = [sessions.runner(model, session=sessions.session(f"s{n}")) for n in range(20)]
    outcomes = await asyncio.gather(*(runner.start("Hello?") for runner in runners), return_exceptions=True)
    assert sum(isinstance(outcome, TooManyTurns) for outcome in outcomes) == 15

    async def are_asked() -> bool:
        return len(model.requests) >= 5

    await until(are_asked)
    await sessions.store.open_turns.finish()
    assert len(model.requests) == 5


async def test_the_dead_never_count_as_running() -> None:
    sessions = Sessions(replace(QUICK, max_running_turns_per_user=1))
    await begin_turn(sessions.session(), is_dead=True)
    runner = sessions.runner(ScriptedModel("Here."), session=sessions.session("new"))
    assert (await runner.run("Hello?")).text == "Here."


async def test_more_tool_calls_than_a_step_may_have_are_refused_and_answered() -> None:
    refunds = Refunds(approval=False)
    orders = [str(number) for number in range(MAX_CALLS_PER_STEP + 2)]
    calls = [ToolCall("refund", {"order": order}) for order in orders]
    result = await Sessions().runner(ScriptedModel(calls, "Done."), refunds.tool).run("Go")
    assert sorted(refunds.orders, key=int) == orders[:-2]
    assert result.tool_errors == 2
    assert all(part.done for part in result.parts if isinstance(part, ToolPart))


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
    assert (result.status, result.message.metadata["errorCode"]) == ("failed", "answer_too_long")
    assert len(result.text) <= 3_000_100
    assert (await sessions.runner(model).run("Go on")).text == "Still here."
    replay = sessions.runner(ScriptedModel()).run_stream(Query("Write for ever", "m1"))
    assert [event.type async for event in replay][-3:] == ["finish", "data-session", "error"]


async def test_a_huge_tool_argument_becomes_an_error_and_every_frame_fits_into_the_chunk_log() -> None:
    refunds = Refunds(approval=False)
    model = ScriptedModel([ToolCall("refund", {"order": "x" * 900_000})], "Sorry.")
    stream = await Sessions().runner(model, refunds.tool).start("Go")
    frames = [frame + b"\n\n" for chunk in [piece async for piece in stream.sse()] for frame in chunk.split(b"\n\n")]
    assert max(map(len, frames)) < 300_000
    assert refunds.orders == []
    assert (await stream.result()).status == "complete"


async def test_a_huge_tool_name_fails_the_answer_before_its_event() -> None:
    stream = await Sessions().runner(ScriptedModel(["One moment.", ToolCall("x" * 900_000)])).start("Go")
    assert max([len(frame) async for frame in stream.sse()]) < 300_000
    result = await stream.result()
    assert (result.status, result.message.metadata["errorCode"]) == ("failed", "model_stream_broken")
    assert result.text.startswith("One moment.")
