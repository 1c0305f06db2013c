"""A message that is accepted now and answered later, by another process."""

import asyncio
from dataclasses import replace

import pytest

from omniagent import Agent, Budget, Query
from omniagent.ai.operator import TurnOperator
from omniagent.errors import (
    InvalidRequest,
    NotRegenerable,
    TooManyRequests,
    TooManyTurns,
    TurnInProgress,
)
from omniagent.settings import Busy
from omniagent.testing import Gate, MemoryCounter, ScriptedModel
from tests.fixtures.conversation import QUICK, Clock, read
from tests.runner.sessions import Sessions

QUERY = Query("Hello", "m1")


async def run(runner: TurnOperator) -> str:
    stream = await runner.take_up()
    assert stream is not None
    result = await stream.result()
    await stream.ended()
    return result.text


async def test_an_accepted_message_waits_and_is_answered_by_whoever_comes_for_it() -> None:
    sessions, model = Sessions(), ScriptedModel("Hi.")
    assert await sessions.runner(model).accept(QUERY) == "m1"
    assert (model.requests, await sessions.queued()) == ([], ["m1"])
    assert await run(sessions.runner(model)) == "Hi."
    assert await sessions.are_free()
    assert await sessions.runner(model).take_up() is None, "delivered twice, answered once"
    assert len(model.requests) == 1


async def test_without_an_id_it_gets_one() -> None:
    sessions = Sessions()
    message_id = await sessions.runner(ScriptedModel()).accept("Hello")
    assert await sessions.queued() == [message_id]


async def test_the_same_message_again_waits_once_and_afterwards_not_at_all() -> None:
    sessions, model = Sessions(), ScriptedModel("Hi.")
    runner = sessions.runner(model)
    assert await asyncio.gather(*(runner.accept(QUERY) for _ in range(5))) == ["m1"] * 5
    assert await sessions.queued() == ["m1"]
    await run(runner)
    assert await runner.accept(QUERY) == "m1"
    assert await sessions.queued() == []
    assert await runner.take_up() is None
    assert (await runner.run(QUERY)).text == "Hi.", "replayed"
    assert len(model.requests) == 1


async def test_whoever_resumes_before_it_runs_gets_its_stream() -> None:
    sessions, model = Sessions(), ScriptedModel("Hi.")
    await sessions.runner(model).accept(QUERY)
    stream = await sessions.runner(model).resume()
    assert stream is not None
    assert b'"delta":"Hi."' in await read(stream)


async def test_it_is_answered_as_it_was_accepted_however_it_is_sent_again() -> None:
    sessions, model = Sessions(), ScriptedModel("One.")
    await sessions.runner(model).accept(QUERY)
    with pytest.raises(TurnInProgress):
        await sessions.runner(model).run(Query("Something else", "m1"))
    assert not model.requests
    stream = await sessions.runner(model).start(QUERY)
    assert (await stream.result()).text == "One."
    await stream.ended()
    assert await sessions.are_free()


async def test_a_stop_reaches_it_before_it_runs() -> None:
    sessions, model = Sessions(), ScriptedModel()
    await sessions.runner(model).accept(QUERY)
    assert await sessions.runner(model).stop("m1")
    assert await sessions.runner(model).take_up() is None
    [question, answer] = sessions.store.sessions[sessions.session().key].messages
    assert (question.text, answer.status, model.requests) == ("Hello", "cancelled", [])


@pytest.mark.parametrize(
    ("busy", "history"), [("queue", "One. Two."), ("interrupt", "On Two."), ("steer", "One. Two.")]
)
async def test_it_meets_a_running_turn_as_its_busy_policy_says(busy: Busy, history: str) -> None:
    gate = Gate()
    sessions, model = Sessions(), ScriptedModel(["On", gate, "e."], "Two.")
    first = await sessions.runner(model).start(Query("First", "m0"))
    await gate.reached()
    with pytest.raises(TurnInProgress):
        await sessions.runner(model).accept(QUERY)
    await sessions.runner(model).accept(QUERY, busy=busy)
    if busy != "interrupt":
        assert await sessions.runner(model).take_up() is None
        gate.set()
    await first.result()
    await first.ended()
    assert await run(sessions.runner(model)) == "Two."
    messages = sessions.store.sessions[sessions.session().key].messages
    assert " ".join(message.text for message in messages if message.role == "assistant") == history


async def test_a_regeneration_is_not_accepted_in_the_background() -> None:
    with pytest.raises(InvalidRequest):
        await Sessions().runner(ScriptedModel()).accept(Query("", "m1", regenerate=True))


async def test_a_message_whose_answer_failed_is_not_silently_forgotten() -> None:
    sessions = Sessions()
    runner = sessions.runner(ScriptedModel(ValueError("broken")))
    assert (await runner.run(QUERY)).status == "failed"
    with pytest.raises(NotRegenerable, match="without `background`"):
        await runner.accept(QUERY)


async def test_its_request_is_counted_once_and_over_the_budget_nothing_waits() -> None:
    sessions, counter = Sessions(), MemoryCounter(Clock())
    budget = Budget(requests_per_minute=1)
    agent, model = Agent("helper", ""), ScriptedModel("Hi.")

    def runner(session_id: str) -> TurnOperator:
        session = sessions.session(session_id)
        return TurnOperator(agent, session, provider=model, registry=sessions.registry, budget=budget, counter=counter)

    await runner("chat").accept(QUERY)
    await runner("chat").accept(QUERY)
    with pytest.raises(TooManyRequests):
        await runner("other").accept(Query("Hello", "m2"))
    assert await sessions.session("other").head() is None
    assert await run(runner("chat")) == "Hi.", "it was counted when it was accepted"


async def test_a_user_cannot_have_any_number_of_messages_wait() -> None:
    sessions, model = Sessions(replace(QUICK, max_readers_per_user=2)), ScriptedModel("Hi.")
    runners = [sessions.runner(model, session=sessions.session(f"s{number}")) for number in range(3)]
    for runner in runners[:2]:
        await runner.accept(QUERY)
    with pytest.raises(TooManyTurns):
        await runners[2].accept(QUERY)
    assert await sessions.session("s2").head() is None
    await run(runners[0])
    await runners[2].accept(QUERY)
