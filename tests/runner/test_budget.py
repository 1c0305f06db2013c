"""What a user may spend: refused before a model call, counted after it."""

from typing import Any

import pytest

from omniagent import Agent, Budget, InMemorySessionManager, Query, Settings, Spending, TurnHooks, Usage, tool
from omniagent.ai.operator import TurnOperator
from omniagent.errors import BudgetExceeded, ModelUnavailable, TooManyRequests
from omniagent.messages import ToolPart
from omniagent.providers import ModelFinish
from omniagent.session.ids import user_id_of
from omniagent.testing import Gate, InMemoryStore, MemoryCounter, MemoryRegistry, ScriptedModel, ToolCall
from tests.fixtures.conversation import Clock

DAY = Budget(tokens_per_day=10_000)
PLENTY = Budget(tokens_per_day=1_000_000)
COSTS_4000 = ["Hello.", ModelFinish("stop", Usage(3_000, 1_000))]
SUMMARY_COSTS_50: list[Any] = ["They talked.", ModelFinish("stop", Usage(40, 10))]
CALL_COSTS_211 = [ToolCall("add", {"a": 1, "b": 2}), ModelFinish("tool-calls", Usage(200, 11))]
ALICE = user_id_of("alice")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Desk:
    """One user's sessions, with a model that plays a script and a counter that the test reads."""

    def __init__(self, *script: Any, budget: Budget = DAY, summary: Any = None, **settings: Any) -> None:
        self.model = ScriptedModel(*script, **({"summary": summary} if summary else {}))
        self.clock = Clock(1_800_014_400.0)  # noon
        self.counter = MemoryCounter(self.clock)
        self.registry = MemoryRegistry()
        self.store = InMemoryStore()
        self.budget = budget
        self.settings = Settings(tick_seconds=0.01, **settings)

    def session(self, session_id: str = "s", kind: type[InMemorySessionManager] = InMemorySessionManager) -> Any:
        return kind("alice", session_id, store=self.store, settings=self.settings)

    def runner(self, session: Any = None, hooks: TurnHooks = TurnHooks()) -> TurnOperator:
        return TurnOperator(
            Agent("helper", "Be brief.", tools=[add]),
            session or self.session(),
            provider=self.model,
            registry=self.registry,
            budget=self.budget,
            counter=self.counter,
            hooks=hooks,
        )

    async def spent(self) -> tuple[int, int]:
        """The tokens, and how many of them are estimated."""
        spending = await self.counter.read(ALICE)
        return spending.tokens, spending.estimated


async def test_each_call_of_a_turn_counts_as_the_provider_reports() -> None:
    desk = Desk(CALL_COSTS_211, COSTS_4000)
    result = await desk.runner().run("1 + 2?")
    assert result.usage.total_tokens == 4_211
    assert await desk.spent() == (4_211, 0)


async def test_over_the_days_tokens_nothing_is_called_or_stored_until_midnight() -> None:
    desk = Desk(*[COSTS_4000] * 4)
    for number in range(3):
        await desk.runner().run(f"Question {number}")
    with pytest.raises(BudgetExceeded) as refused:
        await desk.runner().run("One more")
    assert (refused.value.status, refused.value.code) == (429, "budget_exceeded")
    assert refused.value.retry_after == 12 * 3600
    assert refused.value.reset_at is not None
    assert len(desk.model.requests) == 3
    assert (await desk.session().load()).head.tip.turn_number == 3
    head = await desk.session().head()
    assert head is None or head.turn is None
    desk.clock.pass_by(12 * 3600)
    assert (await desk.runner().run("One more")).status == "complete"


async def test_names_and_summaries_are_refused_alike() -> None:
    desk = Desk(COSTS_4000, COSTS_4000)
    await desk.runner().run("Hello?")
    await desk.runner().run("Again?")
    await desk.counter.add(ALICE, Usage(2_000))
    for refused in (desk.runner().name, desk.runner().summarize, desk.runner().count_request):
        with pytest.raises(BudgetExceeded):
            await refused()
    assert len(desk.model.requests) == 2


async def test_names_and_summaries_count_once() -> None:
    desk = Desk(COSTS_4000, COSTS_4000, budget=PLENTY, summary=SUMMARY_COSTS_50)
    await desk.runner().run("Hello?")
    await desk.runner().run("Again?")
    await desk.runner().summarize()
    assert await desk.spent() == (8_050, 0)
    await desk.runner().name()
    spent, _ = await desk.spent()
    assert spent > 8_050
    assert [request.purpose for request in desk.model.requests] == ["answer", "answer", "summary", "name"]


async def test_the_summary_beside_an_answer_counts() -> None:
    desk = Desk(COSTS_4000, COSTS_4000, budget=PLENTY, summary=SUMMARY_COSTS_50, context_max_turns=1)
    for number in range(2):
        stream = await desk.runner().start(f"Question {number}")
        assert (await stream.result()).usage.total_tokens == 4_000
        await stream.ended()
    assert await desk.spent() == (8_050, 0)


async def test_concurrent_turns_exceed_a_budget_by_one_call_each() -> None:
    gates = [Gate() for _ in range(3)]
    costs_6000 = [ToolCall("add", {"a": 1, "b": 2}), ModelFinish("tool-calls", Usage(6_000))]
    desk = Desk(*([gate, *costs_6000] for gate in gates), *[costs_6000] * 9)
    streams = [await desk.runner(desk.session(f"s{number}")).start("1 + 2?") for number in range(3)]
    for gate in gates:
        await gate.reached()
    for gate in gates:
        gate.set()
    results = [await stream.result() for stream in streams]
    assert {result.error.code for result in results if result.error} == {"budget_exceeded"}
    spent, _ = await desk.spent()
    assert spent == 6_000 * len(desk.model.requests)
    assert 3 * 6_000 <= spent <= DAY.tokens_per_day + 3 * 6_000


async def test_a_replay_is_never_refused_and_costs_nothing() -> None:
    desk = Desk(COSTS_4000, budget=Budget(tokens_per_day=3_000, requests_per_minute=1))
    first = await desk.runner().run(Query("Hello?", "m1"))
    again = await desk.runner().run(Query("Hello?", "m1"))
    assert again.message_id == first.message_id
    assert await desk.spent() == (4_000, 0)
    assert (await desk.counter.read(ALICE)).requests == 1


async def test_requests_of_a_minute_are_limited_and_invalid_ones_do_not_count() -> None:
    desk = Desk(*[COSTS_4000] * 3, budget=Budget(requests_per_minute=2))
    await desk.runner().run("One")
    with pytest.raises(Exception, match="longer than"):
        await desk.runner().run("x" * 100_000)
    await desk.runner().run("Two")
    with pytest.raises(TooManyRequests) as refused:
        await desk.runner().run("Three")
    assert refused.value.retry_after == 60
    desk.clock.pass_by(60)
    await desk.runner().run("Three")


async def test_without_a_limit_nothing_is_counted() -> None:
    desk = Desk(COSTS_4000, budget=Budget())
    await desk.runner().run("Hello?")
    assert await desk.runner().spending() is None
    assert await desk.spent() == (0, 0)


async def test_a_stopped_call_is_estimated_even_before_its_first_token() -> None:
    """Whoever stops every answer at once would otherwise never pay for what the model has read."""
    gate = Gate()
    desk = Desk([gate, "Never said."])
    stream = await desk.runner().start("A question of some words?")
    await gate.reached()
    await desk.runner().stop()
    result = await stream.result()
    spent, estimated = await desk.spent()
    assert spent == estimated == result.usage.total_tokens > 0


async def test_a_call_that_fails_before_it_answers_costs_nothing() -> None:
    desk = Desk(ModelUnavailable())
    await desk.runner().run("Hello?")
    assert await desk.spent() == (0, 0)


async def test_a_provider_that_reports_no_usage_is_estimated() -> None:
    desk = Desk(["Hello there.", ModelFinish("stop", Usage())])
    await desk.runner().run("A question of some words?")
    spent, estimated = await desk.spent()
    assert spent == estimated > 0


class BrokenCounter(MemoryCounter):
    """A team's own counter, which fails when tokens are added."""

    async def add(self, user_id: str, usage: Usage) -> Spending:
        raise OSError(f"no room for {usage} of {user_id}")


async def test_a_broken_counter_loses_no_answer() -> None:
    desk = Desk(CALL_COSTS_211, COSTS_4000)
    desk.counter = BrokenCounter()
    result = await desk.runner().run("1 + 2?")
    assert (result.status, result.stored, result.text) == ("complete", True, "Hello.")


async def test_a_turn_stays_within_its_budget_though_its_counter_is_broken() -> None:
    desk = Desk(CALL_COSTS_211, COSTS_4000, budget=Budget(tokens_per_day=200))
    desk.counter = BrokenCounter()
    result = await desk.runner().run("1 + 2?")
    assert (result.status, result.metadata["errorCode"]) == ("failed", "budget_exceeded")
    assert len(desk.model.requests) == 1


async def test_tool_calls_of_a_turn_are_capped_and_the_model_is_told() -> None:
    call = ToolCall("add", {"a": 1, "b": 2})
    desk = Desk([call, call], [call, call], "Done.", budget=Budget(), max_tool_calls_per_turn=3)
    result = await desk.runner().run("Add and add.")
    assert result.status == "complete"
    ran = [part for part in result.parts if isinstance(part, ToolPart)]
    assert [part.output for part in ran] == [3, 3, 3, None]
    assert ran[-1].error == "At most 3 calls run in one turn. Answer with what you know."
    assert (result.tool_calls, result.tool_errors) == (4, 1)
