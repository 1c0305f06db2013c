"""What a user may spend: refused before the money is spent, counted to the token after it."""

import asyncio
from typing import Any

import pytest

from omniagent import Agent, Budget, InMemorySessionManager, Query, Settings, TurnHooks, Usage, tool
from omniagent.ai.operator import TurnOperator
from omniagent.errors import (
    BudgetExceeded,
    ModelUnavailable,
    NotFound,
    RegistryUnavailable,
    StorageUnavailable,
    TooManyRequests,
)
from omniagent.messages import ToolPart
from omniagent.providers import ModelFinish
from omniagent.session.manager import TurnStart, user_id_of
from omniagent.session.summary_store import RollingSummary
from omniagent.testing import Gate, InMemoryStore, MemoryRegistry, ScriptedModel, ToolCall
from omniagent.turns.ledger import RESERVE_TOKENS, Cost, Reservation
from omniagent.turns.memory_ledger import MemoryLedger
from tests.fixtures.conversation import Clock
from tests.turns.registries import until

DAY = Budget(tokens_per_day=10_000)
COSTS_4000 = ["Hello.", ModelFinish("stop", Usage(3_000, 1_000))]
ALICE = user_id_of("alice")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Desk:
    """One user's sessions, with a model that plays a script and a ledger that the test reads."""

    def __init__(self, *script: Any, budget: Budget = DAY, **settings: Any) -> None:
        self.model = ScriptedModel(*script)
        self.ledger: MemoryLedger = MemoryLedger(Clock())
        self.clock = Clock()
        self.registry = MemoryRegistry(clock=self.clock)
        self.store = InMemoryStore()
        self.budget = budget
        self.settings = Settings(tick_seconds=0.01, **settings)
        self.refusals: list[BudgetExceeded] = []

    def session(self, session_id: str = "s", kind: type[InMemorySessionManager] = InMemorySessionManager) -> Any:
        return kind("alice", session_id, store=self.store, settings=self.settings)

    def runner(self, session: Any = None, hooks: TurnHooks = TurnHooks()) -> TurnOperator:
        return TurnOperator(
            Agent("helper", "Be brief.", tools=[add]),
            session or self.session(),
            provider=self.model,
            registry=self.registry,
            budget=self.budget,
            ledger=self.ledger,
            hooks=hooks,
        )

    async def spent(self) -> tuple[int, int, int]:
        """What was spent, how much of it is estimated, what is reserved."""
        page = await self.ledger.spending(ALICE)
        return page.spent.tokens, page.spent.estimated, page.reserved


async def test_a_turn_is_counted_as_the_provider_counts_it() -> None:
    desk = Desk([ToolCall("add", {"a": 1, "b": 2}), ModelFinish("tool-calls", Usage(200, 11))], COSTS_4000)
    result = await desk.runner().run("1 + 2?")
    assert result.usage.total_tokens == 4_211
    assert await desk.spent() == (4_211, 0, 0)


async def test_over_the_tokens_of_a_day_nothing_is_asked_or_stored() -> None:
    desk = Desk(COSTS_4000, COSTS_4000, COSTS_4000)
    for number in range(3):
        await desk.runner().run(f"Question {number}")
    with pytest.raises(BudgetExceeded) as refused:
        await desk.runner().run("One more")
    assert (refused.value.status, refused.value.code) == (429, "budget_exceeded")
    assert refused.value.reset_at is not None
    assert len(desk.model.requests) == 3
    assert (await desk.session().load()).head.latest_turn_number == 3
    assert await desk.registry.running(desk.session().key) is None


async def test_names_and_summaries_are_refused_alike() -> None:
    desk = Desk(COSTS_4000)
    await desk.runner().run("Hello?")
    await desk.ledger.charge(ALICE, "spent", Cost(6_000))
    for refused in (desk.runner().name, desk.runner().summarize, desk.runner().count_request):
        with pytest.raises(BudgetExceeded):
            await refused()
    assert len(desk.model.requests) == 1


async def test_names_and_summaries_count() -> None:
    desk = Desk(COSTS_4000, COSTS_4000, budget=Budget(tokens_per_day=100_000))
    await desk.runner().run("Hello?")
    await desk.runner().run("Again?")
    spent, _, _ = await desk.spent()
    await desk.runner().name()
    named, _, reserved = await desk.spent()
    assert (named > spent, reserved) == (True, 0)
    await desk.runner().summarize()
    summarized, _, reserved = await desk.spent()
    assert (summarized > named, reserved) == (True, 0)


async def test_the_summary_beside_an_answer_counts() -> None:
    desk = Desk(COSTS_4000, COSTS_4000, COSTS_4000, budget=Budget(tokens_per_day=100_000), summary_after_turns=1)
    for number in range(3):
        stream = await desk.runner().start(f"Question {number}")
        await stream.result()
        await stream.ended()
    spent, estimated, reserved = await desk.spent()
    assert [request.purpose for request in desk.model.requests].count("summary") == 2
    assert spent > 3 * 4_000
    assert (estimated, reserved) == (0, 0)


class Ready(InMemorySessionManager):
    """A session that says when a summary is about to be stored, and waits."""

    ready: Gate

    async def add_summary(self, summary: RollingSummary, *, draft: bool = False) -> bool:
        await self.ready.wait()
        return await super().add_summary(summary, draft=draft)


SUMMARY_COSTS_50: list[Any] = ["They talked.", ModelFinish("stop", Usage(40, 10))]
HUNDRED_THOUSAND = Budget(tokens_per_day=100_000)


def summarized(*script: Any) -> tuple[Desk, Any]:
    desk = Desk(*script, budget=HUNDRED_THOUSAND, summary_after_turns=1)
    desk.model = ScriptedModel(*script, summary=SUMMARY_COSTS_50)
    session = desk.session(kind=Ready)
    session.ready = Gate()
    return desk, session


async def test_what_a_summary_has_cost_is_counted_before_it_is_stored() -> None:
    desk, session = summarized(COSTS_4000, COSTS_4000)
    await desk.runner().run("One")
    stream = await desk.runner(session).start("Two")
    await stream.result()
    await session.ready.reached()
    assert await desk.spent() == (8_050, 0, 0), "beside an answer that is stored"
    session.ready.set()
    await stream.ended()
    session.ready = Gate()
    job = asyncio.create_task(desk.runner(session).summarize(rebuild=True))
    await session.ready.reached()
    assert await desk.spent() == (8_100, 0, 0), "by a job"
    session.ready.set()
    await job


async def test_a_dead_turn_pays_for_its_summary_but_its_answer_omits_it() -> None:
    desk, session = summarized(COSTS_4000, ["Three is ", gate := Gate()])
    await desk.runner().run("One")
    stream = await desk.runner(session).start("Two")
    await gate.reached()
    await session.ready.reached()
    desk.clock.pass_by(60)  # its process hangs longer than the lease
    await desk.runner().settle()
    answer = await desk.session().answer(2)
    assert answer is not None
    assert answer.metadata["stepCount"] == 1
    spent, estimated, _ = await desk.spent()
    assert (spent - estimated, estimated) == (4_050, answer.usage.total_tokens)
    session.ready.set()
    gate.set()
    await stream.ended()


async def test_a_replay_is_never_refused_and_costs_nothing() -> None:
    desk = Desk(COSTS_4000, budget=Budget(tokens_per_day=3_000, requests_per_minute=1))
    first = await desk.runner().run(Query("Hello?", "m1"))
    again = await desk.runner().run(Query("Hello?", "m1"))
    assert again.message_id == first.message_id
    assert await desk.spent() == (4_000, 0, 0)
    assert (await desk.ledger.spending(ALICE)).requests == 1


async def test_requests_of_a_minute_are_limited_and_refused_ones_do_not_count() -> None:
    desk = Desk(COSTS_4000, COSTS_4000, budget=Budget(requests_per_minute=2))
    await desk.runner().run("One")
    with pytest.raises(Exception, match="longer than"):
        await desk.runner().run("x" * 100_000)
    await desk.runner().run("Two")
    with pytest.raises(TooManyRequests) as refused:
        await desk.runner().run("Three")
    assert refused.value.retry_after is not None
    assert 0 < refused.value.retry_after <= 60


async def test_a_hook_that_raises_does_not_change_the_refusal_that_it_is_called_with() -> None:
    refusals: list[BudgetExceeded] = []

    def on_refusal(refusal: BudgetExceeded) -> None:
        refusals.append(refusal)
        raise KeyError("metric")

    desk = Desk(COSTS_4000, budget=Budget(requests_per_minute=1))
    await desk.runner().run("One")
    runner = desk.runner(hooks=TurnHooks(on_refusal=on_refusal))
    with pytest.raises(TooManyRequests) as refused:
        await runner.run("Two")
    assert refusals == [refused.value]


async def test_without_a_limit_nothing_is_written() -> None:
    desk = Desk(COSTS_4000, budget=Budget())
    await desk.runner().run("Hello?")
    assert await desk.runner().spending() is None
    assert await desk.spent() == (0, 0, 0)


async def test_the_settings_have_a_budget_for_everybody() -> None:
    desk = Desk(COSTS_4000, budget_tokens_per_day=100)
    runner = TurnOperator(
        Agent("a", "b"), desk.session(), provider=desk.model, ledger=desk.ledger, registry=desk.registry
    )
    assert runner.budget == Budget(tokens_per_day=100)
    await runner.run("Hello?")
    with pytest.raises(BudgetExceeded):
        await runner.run("Again?")


async def test_a_turn_that_would_outgrow_the_budget_ends_before_it_asks_again() -> None:
    call = [ToolCall("add", {"a": 1, "b": 2}), ModelFinish("tool-calls", Usage(9_000, 2_000))]
    desk = Desk(call, COSTS_4000)
    result = await desk.runner().run("1 + 2?")
    assert (result.status, result.metadata["errorCode"]) == ("failed", "budget_exceeded")
    assert len(desk.model.requests) == 1
    assert await desk.spent() == (11_000, 0, 0)


async def test_a_stopped_call_is_estimated_even_before_its_first_token() -> None:
    """Whoever stops every answer at once would otherwise never pay for what the model has read."""
    gate = Gate()
    desk = Desk([gate, "Never said."])
    stream = await desk.runner().start("A question of some words?")
    await gate.reached()
    await desk.runner().stop()
    result = await stream.result()
    spent, estimated, reserved = await desk.spent()
    assert spent == estimated == result.usage.total_tokens > 0
    assert reserved == 0


async def test_a_call_that_the_model_failed_before_it_answered_costs_nothing() -> None:
    desk = Desk(ModelUnavailable())
    await desk.runner().run("Hello?")
    assert await desk.spent() == (0, 0, 0)


async def test_a_provider_that_counts_nothing_is_estimated() -> None:
    desk = Desk(["Hello there.", ModelFinish("stop", Usage())])
    await desk.runner().run("A question of some words?")
    spent, estimated, _ = await desk.spent()
    assert spent == estimated > 0


class Unbegun(InMemorySessionManager):
    """A session whose messages cannot be stored."""

    gate: Gate

    async def begin_turn(self, start: TurnStart) -> None:
        await self.gate.reached()
        raise StorageUnavailable("down")


async def test_a_turn_that_does_not_begin_pays_for_what_it_asked_and_keeps_nothing_reserved() -> None:
    desk = Desk(["Hel", gate := Gate()])
    session = desk.session(kind=Unbegun)
    session.gate = gate
    with pytest.raises(StorageUnavailable):
        await desk.runner(session).run("Hello?")
    spent, estimated, reserved = await desk.spent()
    assert spent == estimated > 0
    assert reserved == 0


class Hanging(InMemorySessionManager):
    """A session whose messages are stored when nobody waits for it any more."""

    async def begin_turn(self, start: TurnStart) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("way", ["message", "deletion"])
async def test_what_a_turn_had_reserved_that_died_before_its_question_was_stored_is_released(way: str) -> None:
    desk = Desk(["Hel", gate := Gate()], COSTS_4000)
    unbegun = asyncio.create_task(desk.runner(desk.session(kind=Hanging)).run("Hello?"))
    await gate.reached()
    assert await desk.spent() == (0, 0, DAY.tokens_per_day)
    desk.clock.pass_by(60)  # its process hangs longer than the lease
    if way == "message":
        await desk.runner().run("Are you there?")
        assert await desk.spent() == (4_000, 0, 0)
    else:
        with pytest.raises(NotFound):
            await desk.runner().erase()
        assert await desk.spent() == (0, 0, 0)
    unbegun.cancel()
    await asyncio.wait([unbegun])


async def test_repair_settles_a_dead_turn_with_counted_and_estimated_tokens() -> None:
    gate = Gate()
    call = [ToolCall("add", {"a": 1, "b": 2}), ModelFinish("tool-calls", Usage(200, 11))]
    desk = Desk(call, ["Three is ", gate], "Another answer.")
    stream = await desk.runner().start("1 + 2?")
    await gate.reached()
    key, turn_id = desk.session().key, stream.message_id

    async def is_logged() -> bool:
        return any(b"Three" in frames for _, frames in await desk.registry.read(key, turn_id))

    await until(is_logged)
    desk.clock.pass_by(60)  # its process hangs longer than the lease
    head = await desk.runner().settle()
    assert head is not None
    assert head.active_turn_id is None
    answer = await desk.session().answer(1)
    assert answer is not None
    spent, estimated, reserved = await desk.spent()
    assert spent - estimated == 211
    assert estimated > 0
    assert reserved == 0
    assert answer.usage.total_tokens == spent
    assert answer.metadata["usage"]["estimated"]
    gate.set()
    result = await stream.result()
    assert await desk.spent() == (result.usage.total_tokens, 0, 0), "it was not dead after all"


class RestlessLedger(MemoryLedger):
    """Cannot be reached while it has a failure."""

    failure: Exception | None = None

    async def settle(self, held: Reservation, cost: Cost) -> None:
        if self.failure is not None:
            raise self.failure
        await super().settle(held, cost)

    async def give_back(self, held: Reservation) -> None:
        if self.failure is not None:
            raise self.failure
        await super().give_back(held)


@pytest.mark.parametrize("failure", [RegistryUnavailable("down"), OSError("as a team's own ledger raises it")])
async def test_what_could_not_be_settled_is_settled_before_the_next_reservation(failure: Exception) -> None:
    desk = Desk(COSTS_4000, COSTS_4000, budget=HUNDRED_THOUSAND)
    desk.ledger = ledger = RestlessLedger()
    ledger.failure = failure
    assert (await desk.runner().run(Query("One", "m1"))).stored
    await desk.runner().run(Query("One", "m1"))  # a replay that cannot give back what it reserved
    assert await desk.spent() == (0, 0, 2 * RESERVE_TOKENS)
    ledger.failure = None
    await desk.runner(desk.session("another")).run("Two")
    assert await desk.spent() == (8_000, 0, 0)


async def test_a_turn_that_never_begins_pays_although_settling_failed_at_first() -> None:
    desk = Desk(["Hel", gate := Gate()], COSTS_4000)
    desk.ledger = ledger = RestlessLedger()
    ledger.failure = RegistryUnavailable("down")
    session = desk.session(kind=Unbegun)
    session.gate = gate
    with pytest.raises(StorageUnavailable):
        await desk.runner(session).run("Hello?")
    ledger.failure = None
    await desk.runner(desk.session("another")).run("Hello?")
    spent, estimated, reserved = await desk.spent()
    assert spent - estimated == 4_000
    assert estimated > 0
    assert reserved == 0


async def test_tool_calls_of_a_turn_are_capped_and_the_model_is_told() -> None:
    call = ToolCall("add", {"a": 1, "b": 2})
    desk = Desk([call, call], [call, call], "Done.", budget=Budget(), max_tool_calls_per_turn=3)
    result = await desk.runner().run("Add and add.")
    assert result.status == "complete"
    ran = [part for part in result.parts if isinstance(part, ToolPart)]
    assert [part.output for part in ran] == [3, 3, 3, None]
    assert ran[-1].error == "At most 3 calls run in one turn. Answer with what you know."
    assert (result.tool_calls, result.tool_errors) == (4, 1)
