"""A message that is accepted now and answered later, by another process."""

import asyncio
from dataclasses import replace

import pytest

from omniagent import Budget, Query
from omniagent.ai.operator import TurnOperator
from omniagent.errors import InvalidRequest, NotRegenerable, TooManyRequests, TooManyTurns, TurnInProgress
from omniagent.settings import Busy
from omniagent.testing import ScriptedModel
from tests.runner.sessions import Sessions, texts_of

QUERY = Query("Hello", "m1")


async def run(runner: TurnOperator) -> str:
    stream = await runner.take_up()
    assert stream is not None
    [text] = await texts_of(stream)
    return text


async def test_an_accepted_message_waits_and_is_answered_by_whoever_comes_for_it(sessions: Sessions) -> None:
    runner = sessions.runner(model := ScriptedModel("Hi."))
    assert await asyncio.gather(*(runner.accept(QUERY) for _ in range(5))) == ["m1"] * 5
    assert (model.requests, await sessions.queued()) == ([], ["m1"])
    assert await run(sessions.runner(model)) == "Hi."
    assert await runner.accept(QUERY) == "m1"
    assert await sessions.queued() == []
    assert await runner.take_up() is None, "delivered twice, answered once"
    assert (await runner.run(QUERY)).text == "Hi.", "replayed"
    assert len(model.requests) == 1


async def test_without_an_id_it_gets_one(sessions: Sessions) -> None:
    runner = sessions.runner(ScriptedModel("Hi."))
    message_id = await runner.accept("Hello")
    assert await sessions.queued() == [message_id]
    await run(runner)


async def test_whoever_resumes_before_it_runs_gets_its_stream(sessions: Sessions) -> None:
    runner = sessions.runner(ScriptedModel("Hi."))
    await runner.accept(QUERY)
    stream = await runner.resume()
    assert stream is not None
    assert await texts_of(stream) == ["Hi."]


async def test_it_is_answered_as_it_was_accepted_however_it_is_sent_again(sessions: Sessions) -> None:
    runner = sessions.runner(model := ScriptedModel("One."))
    await runner.accept(QUERY)
    with pytest.raises(TurnInProgress):
        await runner.run(Query("Something else", "m1"))
    assert not model.requests
    assert await texts_of(await runner.start(QUERY)) == ["One."]


@pytest.mark.parametrize(
    ("busy", "history"), [("queue", ["One.", "Two."]), ("interrupt", ["One", "Two."]), ("steer", ["One.", "Two."])]
)
async def test_it_meets_a_running_turn_as_its_busy_policy_says(
    sessions: Sessions, busy: Busy, history: list[str]
) -> None:
    model, first, gate = await sessions.answering("Two.")
    runner, query = sessions.runner(model), Query("Hello", "m2")
    with pytest.raises(TurnInProgress):
        await runner.accept(query)
    await runner.accept(query, busy=busy)
    if busy != "interrupt":
        assert await runner.take_up() is None
        gate.set()
    await texts_of(first)
    assert await run(runner) == "Two."
    assert [message.text for message in sessions.messages if message.role == "assistant"] == history


async def test_a_regeneration_is_not_accepted_in_the_background(sessions: Sessions) -> None:
    runner = sessions.runner(ScriptedModel(ValueError("broken")))
    with pytest.raises(InvalidRequest):
        await runner.accept(Query("", "m1", regenerate=True))
    assert (await runner.run(QUERY)).status == "failed"
    with pytest.raises(NotRegenerable, match="without `background`"):
        await runner.accept(QUERY)


async def test_its_request_is_counted_once_and_over_the_budget_nothing_waits(sessions: Sessions) -> None:
    sessions.budget = Budget(requests_per_minute=1)
    runner = sessions.runner(ScriptedModel("Hi."))
    for _ in range(2):
        await runner.accept(QUERY)
    with pytest.raises(TooManyRequests):
        await sessions.runner(ScriptedModel(), session=sessions.session("other")).accept(Query("Hello", "m2"))
    assert await sessions.session("other").head() is None
    assert await run(runner) == "Hi.", "it was counted when it was accepted"


async def test_a_user_cannot_have_any_number_of_messages_wait(sessions: Sessions) -> None:
    sessions.settings = replace(sessions.settings, max_readers_per_user=2)
    model = ScriptedModel(default="Hi.")
    runners = [sessions.runner(model, session=sessions.session(f"s{number}")) for number in range(3)]
    for runner in runners[:2]:
        await runner.accept(QUERY)
    with pytest.raises(TooManyTurns):
        await runners[2].accept(QUERY)
    assert await sessions.session("s2").head() is None
    await run(runners[0])
    await runners[2].accept(QUERY)
    for runner in runners[1:]:
        await run(runner)
