"""What a user may spend: refused before a model call, counted after it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from omniagent import Budget, Query, Spending, Usage, tool
from omniagent.errors import BudgetExceeded, ModelUnavailable, TooManyRequests, TooManyTurns
from omniagent.messages import ToolPart
from omniagent.providers import ModelFinish
from omniagent.session.ids import user_id_of
from omniagent.testing import Gate, MemoryCounter, ScriptedModel, ToolCall
from tests.fixtures.conversation import QUICK
from tests.runner.sessions import Sessions

DAY = Budget(tokens_per_day=10_000)
PLENTY = Budget(tokens_per_day=1_000_000)
COSTS_4000: list[Any] = ["Hello.", ModelFinish("stop", Usage(3_000, 1_000))]
SUMMARY_COSTS_50: list[Any] = ["They talked.", ModelFinish("stop", Usage(40, 10))]
CALL = ToolCall("add", {"a": 1, "b": 2})
CALL_COSTS_211: list[Any] = [CALL, ModelFinish("tool-calls", Usage(200, 11))]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def spent(sessions: Sessions) -> tuple[int, int]:
    """The tokens, and how many of them are estimated."""
    spending = await sessions.counter.read(user_id_of("ada"))
    return spending.tokens, spending.estimated


async def test_each_call_of_a_turn_counts_as_the_provider_reports() -> None:
    sessions = Sessions(budget=DAY)
    result = await sessions.runner(ScriptedModel(CALL_COSTS_211, COSTS_4000), add).run("1 + 2?")
    assert result.usage.total_tokens == 4_211
    assert await spent(sessions) == (4_211, 0)


async def test_over_the_days_tokens_nothing_is_called_or_stored_until_midnight() -> None:
    sessions, model = Sessions(budget=DAY), ScriptedModel(*[COSTS_4000] * 4)
    runner = sessions.runner(model)
    for number in range(3):
        await runner.run(f"Question {number}")
    with pytest.raises(BudgetExceeded) as refused:
        await runner.run("One more")
    assert (refused.value.status, refused.value.code, refused.value.retry_after) == (429, "budget_exceeded", 12 * 3600)
    assert refused.value.reset_at is not None
    for request in (runner.name, runner.summarize, runner.count_request):
        with pytest.raises(BudgetExceeded):
            await request()
    head = await sessions.head()
    assert (len(model.requests), head.tip.turn_number, head.turn) == (3, 3, None)
    sessions.clock.pass_by(12 * 3600)
    assert (await runner.run("One more")).status == "complete"


async def test_names_and_summaries_count_once() -> None:
    sessions = Sessions(budget=PLENTY)
    model = ScriptedModel(COSTS_4000, COSTS_4000, summary=SUMMARY_COSTS_50)
    runner = sessions.runner(model)
    for text in ("Hello?", "Again?"):
        await runner.run(text)
    await runner.summarize()
    assert await spent(sessions) == (8_050, 0)
    await runner.name()
    assert (await spent(sessions))[0] > 8_050
    assert [request.purpose for request in model.requests] == ["answer", "answer", "summary", "name"]


async def test_the_summary_beside_an_answer_counts() -> None:
    sessions = Sessions(replace(QUICK, context_max_turns=1), budget=PLENTY)
    runner = sessions.runner(ScriptedModel(COSTS_4000, COSTS_4000, summary=SUMMARY_COSTS_50))
    for number in range(2):
        stream = await runner.start(f"Question {number}")
        assert (await stream.result()).usage.total_tokens == 4_000
        await stream.ended()
    assert await spent(sessions) == (8_050, 0)


async def test_concurrent_turns_exceed_a_budget_by_one_call_each() -> None:
    gates = [Gate() for _ in range(3)]
    costs_6000: list[Any] = [CALL, ModelFinish("tool-calls", Usage(6_000))]
    sessions, model = Sessions(budget=DAY), ScriptedModel(*([gate, *costs_6000] for gate in gates), *[costs_6000] * 9)
    runners = [sessions.runner(model, add, session=sessions.session(f"s{number}")) for number in range(3)]
    streams = [await runner.start("1 + 2?") for runner in runners]
    for gate in gates:
        await gate.reached()
    for gate in gates:
        gate.set()
    results = [await stream.result() for stream in streams]
    assert {result.error.code for result in results if result.error} == {"budget_exceeded"}
    tokens, _ = await spent(sessions)
    assert tokens == 6_000 * len(model.requests)
    assert 3 * 6_000 <= tokens <= DAY.tokens_per_day + 3 * 6_000


async def test_a_replay_is_never_refused_by_a_limit_and_costs_nothing() -> None:
    budget = Budget(tokens_per_day=3_000, requests_per_minute=1)
    sessions, free = Sessions(replace(QUICK, max_running_turns_per_user=1), budget=budget), Budget()
    runner, query = sessions.runner(ScriptedModel(COSTS_4000)), Query("Hello?", "m1")
    first = await runner.run(query)
    busy = sessions.runner(ScriptedModel(["Wait", Gate()]), session=sessions.session("busy"), budget=free)
    await busy.start("Hello?")
    with pytest.raises(TooManyTurns):
        await sessions.runner(ScriptedModel(), budget=free).run(Query("Another", "m2"))
    assert (await runner.run(query)).message_id == first.message_id
    assert await spent(sessions) == (4_000, 0)
    assert (await sessions.counter.read(user_id_of("ada"))).requests == 1
    await sessions.store.open_turns.finish()


async def test_requests_of_a_minute_are_limited_and_invalid_ones_do_not_count() -> None:
    sessions = Sessions(budget=Budget(requests_per_minute=2))
    runner = sessions.runner(ScriptedModel(*[COSTS_4000] * 3))
    await runner.run("One")
    with pytest.raises(Exception, match="longer than"):
        await runner.run("x" * 100_000)
    await runner.run("Two")
    with pytest.raises(TooManyRequests) as refused:
        await runner.run("Three")
    assert refused.value.retry_after == 60
    sessions.clock.pass_by(60)
    await runner.run("Three")


async def test_without_a_limit_nothing_is_counted() -> None:
    sessions = Sessions(budget=Budget())
    runner = sessions.runner(ScriptedModel(COSTS_4000))
    await runner.run("Hello?")
    assert await runner.spending() is None
    assert await spent(sessions) == (0, 0)


async def test_a_stopped_call_is_estimated_even_before_its_first_token() -> None:
    """Whoever stops every answer at once would otherwise never pay for what the model has read."""
    sessions, gate = Sessions(budget=DAY), Gate()
    runner = sessions.runner(ScriptedModel([gate, "Never said."]))
    stream = await runner.start("A question of some words?")
    await gate.reached()
    await runner.stop()
    result = await stream.result()
    tokens, estimated = await spent(sessions)
    assert tokens == estimated == result.usage.total_tokens > 0


@pytest.mark.parametrize(("answer", "costs"), [(ModelUnavailable(), 0), (["Hi.", ModelFinish("stop", Usage())], 1)])
async def test_a_call_without_reported_usage_is_estimated_unless_it_fails_at_once(answer: Any, costs: int) -> None:
    sessions = Sessions(budget=DAY)
    await sessions.runner(ScriptedModel(answer)).run("A question of some words?")
    tokens, estimated = await spent(sessions)
    assert (tokens, min(tokens, 1)) == (estimated, costs)


class BrokenCounter(MemoryCounter):
    """A team's own counter, which fails when tokens are added."""

    async def add(self, user_id: str, usage: Usage) -> Spending:
        raise OSError(f"no room for {usage} of {user_id}")


@pytest.mark.parametrize(
    ("budget", "outcome"),
    [(DAY, ("complete", "Hello.", None)), (Budget(tokens_per_day=200), ("failed", "", "budget_exceeded"))],
)
async def test_a_broken_counter_loses_no_answer_and_no_limit(budget: Budget, outcome: Sequence[Any]) -> None:
    model = ScriptedModel(CALL_COSTS_211, COSTS_4000)
    result = await Sessions(budget=budget).runner(model, add, counter=BrokenCounter()).run("1 + 2?")
    status, text, code = outcome
    assert (result.status, result.stored, result.message.metadata.get("errorCode")) == (status, True, code)
    assert result.text.startswith(text)
    assert len(model.requests) == (1 if code else 2)


async def test_tool_calls_of_a_turn_are_capped_and_the_model_is_told() -> None:
    sessions = Sessions(replace(QUICK, max_tool_calls_per_turn=3))
    result = await sessions.runner(ScriptedModel([CALL, CALL], [CALL, CALL], "Done."), add).run("Add and add.")
    assert result.status == "complete"
    ran = [part for part in result.parts if isinstance(part, ToolPart)]
    assert [part.output for part in ran] == [3, 3, 3, None]
    assert ran[-1].error == "At most 3 calls run in one turn. Answer with what you know."
    assert (result.tool_calls, result.tool_errors) == (4, 1)
