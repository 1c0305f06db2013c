"""A team with types: what is inferred, and what fits."""

from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, assert_type

from pydantic import BaseModel

from omniagent import (
    Agent,
    AnswerStream,
    Approver,
    Callbacks,
    InMemorySessionManager,
    Project,
    RunContext,
    Runner,
    RunResult,
    Tool,
    ToolRequest,
    ask_user,
    client_tool,
    tool,
)


class Shop:
    name = "Corner"


class Market(Shop):
    """A shop: its agents may use a shop's tools."""


class Ticket(BaseModel):
    title: str


@tool
async def first(context: RunContext[Shop], query: str) -> str:
    """First."""
    return context.deps.name + query


@tool
async def later(query: str, limit: int, context: RunContext[Shop], page: int = 1) -> list[str]:
    """Later."""
    return [f"{context.deps.name}: {query}"][:limit][page:]


@tool(name="renamed", timeout_seconds=3, approval=True)
def with_options(query: str, context: RunContext[Shop]) -> str:
    """With options."""
    return context.deps.name + query


@tool
async def without_context(query: str) -> int:
    """Without context."""
    return len(query)


def rule(context: RunContext[Shop], arguments: Any) -> str | None:
    return f"{context.deps.name} asks: {arguments}"


@tool(approval=rule)
async def approved(query: str) -> str:
    """Approved."""
    return query


@client_tool
async def locate(accuracy: int) -> Ticket:
    """Locate."""
    raise NotImplementedError(accuracy)


class Search(Tool[Shop]):
    """Search the shop."""

    class Arguments(BaseModel):
        query: str

    async def __call__(self, arguments: Arguments, context: RunContext[Shop]) -> str:
        return context.deps.name + arguments.query


class Untyped(Tool):
    """A tool that says nothing about its dependencies."""

    class Arguments(BaseModel):
        query: str

    async def __call__(self, arguments: Arguments, context: RunContext) -> str:
        return f"{context.deps.anything} {arguments.query}"


async def on_finish(context: RunContext[Shop], result: RunResult[Ticket]) -> None:
    print(context.deps.name, result.output)


def instructions(context: RunContext[Shop]) -> str:
    return f"You work for {context.deps.name}."


async def open_shop() -> Shop:
    return Shop()


@asynccontextmanager
async def lend_shop() -> AsyncGenerator[Shop]:
    yield Shop()


@contextmanager
def lend_shop_at_once() -> Generator[Shop]:
    yield Shop()


TOOLS: list[Tool[Shop]] = [first, later, with_options, without_context, approved, locate, ask_user, Search(), Untyped()]

agent = Agent("a", instructions, TOOLS, deps=Shop(), output=Ticket, callbacks=Callbacks(on_finish=on_finish))
assert_type(agent, Agent[Shop, Ticket])
assert_type(Agent("a", "", [first], deps=Shop()), Agent[Shop, BaseModel])
assert_type(Agent("a", "", [first], deps=Shop), Agent[Shop, BaseModel])
assert_type(Agent("a", "", [first], deps=open_shop), Agent[Shop, BaseModel])
assert_type(Agent("a", "", [first], deps=lend_shop), Agent[Shop, BaseModel])
assert_type(Agent("a", "", [first], deps=lend_shop_at_once), Agent[Shop, BaseModel])
assert_type(Agent("a", "", [first, later, Search()], deps=Market()), Agent[Market, BaseModel])
assert_type(Agent("a", "", [without_context, ask_user]), Agent[None, BaseModel])
assert_type(
    Agent("a", "", [first, later, without_context, approved, ask_user, Search()], deps=Shop), Agent[Shop, BaseModel]
)


def any_agent(agent: Agent) -> Runner:
    return Runner(agent, InMemorySessionManager("ada"))


any_agent(agent)
any_agent(Agent("a", "", output=Ticket))


def approvers(approver: Approver, request: ToolRequest) -> bool | Awaitable[bool]:
    return approver.user == request.user


project = Project(agent=agent, approvers=approvers)
several = Project(agents={"tickets": agent, "plain": Agent("b", "")}, choose_agent=lambda user, category, name: "plain")


async def use() -> None:
    runner = Runner(agent, InMemorySessionManager("ada"))
    result = await runner.run("Hi")
    assert_type(result, RunResult[Ticket])
    assert_type(result.output, Ticket | None)
    if result.output:
        print(result.output.title.upper())
    assert_type(await Runner(project, InMemorySessionManager("ada")).run("Hi"), RunResult[Ticket])
    assert_type((await Runner(several, InMemorySessionManager("ada")).run("Hi")).output, BaseModel | None)
    stream = runner.run_stream("Hi")
    assert_type(stream, AnswerStream[Ticket])
    assert_type((await stream.result()).output, Ticket | None)
    assert_type((await any_agent(agent).run("Hi")).output, BaseModel | None)
    context = RunContext(user="ada", deps=Shop())
    assert_type(await first(context, query="tea"), str)
    assert_type(await later(query="tea", limit=1, context=context), list[str])
    assert_type(await without_context("tea"), int)
