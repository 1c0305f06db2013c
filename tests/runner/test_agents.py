"""Several agents in one project: a session's first message chooses, and the session keeps its agent."""

import asyncio

import pytest

from omniagent import Agent, Budget, InMemorySessionManager, Project, Query, SessionManager, tool
from omniagent.ai.operator import TurnOperator
from omniagent.errors import BudgetExceeded, ConfigurationError, Forbidden, InvalidRequest
from omniagent.testing import Gate, InMemoryStore, MemoryCounter, MemoryRegistry, ScriptedModel, ToolCall
from tests.fixtures.live_turns import begin_turn
from tests.runner.conftest import SessionOf
from tests.runner.sessions import Sessions, texts_of


@tool
async def price(item: str) -> str:
    """Look up a price."""
    return f"{item}: 5 euros"


class Company:
    """A project with two agents, each with a model of its own."""

    def __init__(self, **options: object) -> None:
        self.support = ScriptedModel(default="Have you tried turning it off?", name="Help", summary="They need help.")
        self.sales = ScriptedModel(default="Buy it.", name="A sale", summary="They buy.")
        self.options = options
        self.counter, self.registry = MemoryCounter(), MemoryRegistry()
        self.agents = {
            "support": Agent("support", "Help.", model="support/x"),
            "sales": Agent("sales", "Sell.", [price], model="sales/x"),
        }

    def runner(self, session: SessionManager) -> TurnOperator:
        project = Project(
            agents=self.agents,
            providers={"support": self.support, "sales": self.sales},
            **self.options,  # type: ignore[arg-type]  # of a test
        )
        return TurnOperator(project, session, counter=self.counter, registry=self.registry)


async def test_a_session_keeps_the_agent_of_its_first_message(session_of: SessionOf) -> None:
    company = Company()
    company.sales = ScriptedModel(ToolCall("price", {"item": "tea"}), "5 euros.", default="Good.", name="A sale")
    first = await company.runner(session_of("shop")).run(Query("How much is tea?", agent="sales"))
    assert (first.text, first.tool_calls) == ("5 euros.", 1)
    for query in (Query("Fine."), Query("Fine.", agent="sales")):
        assert (await company.runner(session_of("shop")).run(query)).text == "Good."
    assert await company.runner(session_of("shop")).name() == "A sale"
    await company.runner(session_of("shop")).summarize()
    assert {request.purpose for request in company.sales.requests} == {"answer", "summary", "name"}
    assert (await company.runner(session_of("help")).run("It broke.")).text == "Have you tried turning it off?"
    listed = await session_of("any").store.list_sessions(session_of("any").user)
    assert {each.session_id: each.agent for each in listed} == {"shop": "sales", "help": "support"}


async def test_another_or_an_unknown_agent_is_refused(session_of: SessionOf) -> None:
    runner = Company().runner(session_of("chat"))
    with pytest.raises(InvalidRequest) as unknown:
        await runner.run(Query("Hello?", agent="secret"))
    assert unknown.value.public == "agent: there is no such agent."
    assert await session_of("chat").head() is None
    await runner.run("Hello?")
    with pytest.raises(InvalidRequest, match="this session has another agent"):
        await runner.run(Query("Hello?", agent="sales"))
    single = TurnOperator(Project(agent=Agent("one", "")), session_of("single"), provider=ScriptedModel())
    with pytest.raises(InvalidRequest, match="there is only one agent"):
        await single.run(Query("Hello?", agent="one"))


async def test_two_first_messages_at_once_cannot_give_a_session_two_agents(session_of: SessionOf) -> None:
    company, gate = Company(), Gate()

    async def slow(user: str, category: str | None, name: str | None) -> str:
        if name == "support":
            await gate.wait()
        return name or "support"

    company.options = {"choose_agent": slow}
    late = asyncio.create_task(company.runner(session_of("chat")).run(Query("Hi.", agent="support", busy="queue")))
    await gate.reached()
    await company.runner(session_of("chat")).run(Query("Hi.", agent="sales"))
    gate.set()
    with pytest.raises(InvalidRequest, match="this session has another agent"):
        await late
    assert company.support.requests == []


async def test_a_rule_of_the_project_decides_by_category() -> None:
    def rule(user: str, category: str | None, name: str | None) -> str:
        return "sales" if category == "lead" else "support"

    company, session = Company(choose_agent=rule), Sessions().session
    for category, text in (("lead", "Buy it."), (None, "Have you tried turning it off?")):
        assert (await company.runner(session(f"of-{category}", category=category)).run("Hello?")).text == text
    with pytest.raises(Forbidden, match="You may not use this agent"):
        await company.runner(session()).run(Query("Hello?", agent="sales"))
    wrong = Company(choose_agent=lambda user, category, name: "nobody")
    with pytest.raises(ConfigurationError, match="returned 'nobody', which names no agent"):
        await wrong.runner(session()).run("Hello?")


async def test_a_session_whose_agent_is_gone_says_what_to_do() -> None:
    company, session = Company(), Sessions().session()
    await company.runner(session).run(Query("Hello?", agent="sales"))
    del company.agents["sales"]
    runner = company.runner(session)
    with pytest.raises(ConfigurationError, match=r"agent 'sales' is not in Project\(agents=…\) any more: add it again"):
        await runner.run("And now?")
    assert await runner.resume() is not None, "what is stored can still be read"
    assert not await runner.stop()
    await runner.erase()


async def test_a_dead_turn_and_a_message_in_line_are_answered_by_the_sessions_agent(session_of: SessionOf) -> None:
    company = Company()
    await company.runner(session_of("chat")).accept(Query("How much?", "m1", agent="sales"))
    for _ in range(2):
        stream = await company.runner(session_of("chat")).take_up()
        assert stream is not None
        assert await texts_of(stream) == ["Buy it."]
        await begin_turn(session_of("chat"), "And two?", message_id="m2", is_dead=True)


async def test_an_agents_own_budget_limits_each_user_of_it() -> None:
    company, store = Company(), InMemoryStore()
    company.agents["sales"] = Agent("sales", "Sell.", model="sales/x", budget=Budget(tokens_per_day=10))

    def session(user: str) -> SessionManager:
        return InMemorySessionManager(user, store=store)

    await company.runner(session("ada")).run(Query("one two three four five six seven", agent="sales"))
    with pytest.raises(BudgetExceeded, match="used up your tokens for this agent for today"):
        await company.runner(session("ada")).run(Query("More?", agent="sales"))
    assert (await company.runner(session("ada")).run(Query("More?", agent="support"))).status == "complete"
    assert (await company.runner(session("bob")).run(Query("More?", agent="sales"))).status == "complete"
