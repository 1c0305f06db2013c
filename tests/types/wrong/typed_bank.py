"""What a team may get wrong. A type checker reports every line marked `# error`, and no other."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from pydantic import BaseModel

import omniagent
from omniagent import Agent, Callbacks, InMemorySessionManager, Project, RunContext, Runner, RunResult, tool
from tests.types.right.typed_shop import (
    Search,
    Shop,
    Ticket,
    approved,
    instructions,
    later,
    with_options,
    without_context,
)


class Bank:
    rate = 0.02


class Letter(BaseModel):
    text: str


@tool
async def first(context: RunContext[Shop], query: str) -> str:
    """First."""
    return context.deps.rate + query  # error


def rule_of_two(context: RunContext[Shop]) -> bool:
    return context.deps.name == ""


async def on_start(context: RunContext[Shop]) -> None:
    print(context.deps.name)


def on_start_at_once(context: RunContext[Shop]) -> None:
    print(context.deps.name)


async def open_bank() -> Bank:
    return Bank()


@asynccontextmanager
async def lend_bank() -> AsyncGenerator[Bank]:
    yield Bank()


Agent("a", "", [first], deps=Bank())  # error
Agent("a", "", [without_context, later], deps=Bank)  # error
Agent("a", "", [with_options], deps=open_bank)  # error
Agent("a", "", [approved], deps=lend_bank)  # error
Agent("a", "", [Search()], deps=lend_bank)  # error
Agent("a", "", [later])  # error
Agent("a", instructions, deps=Bank())  # error
Agent("a", "", deps=Bank(), callbacks=Callbacks(on_start=on_start))  # error
Agent("a", "", deps=Shop(), callbacks=Callbacks(on_start=on_start_at_once))  # error
Agent("a", "", output=Shop)  # error
Agent("a", "", model=4)  # error
Agent("a", "", temperature=0.5)  # error
typed: Agent[Bank, Ticket] = Agent("a", "", [later], output=Ticket, deps=Shop())  # error

tool(approval=rule_of_two)  # error
print(omniagent.NoSuchName)  # error


def nobody(approver: str) -> bool:
    return approver == ""


agent = Agent("a", "", [later], deps=Shop(), output=Ticket)
Project(agent=agent, approvers=nobody)  # error


async def use() -> None:
    result = await Runner(agent, InMemorySessionManager("ada")).run("Hi")
    print(result.output.title)  # error
    if result.output:
        print(result.output.text)  # error
    letter: RunResult[Letter] = result  # error
    print(letter)
    free = await Runner(Agent("a", ""), InMemorySessionManager("ada")).run("Hi")
    print(free.output.title)  # error
    await without_context(query=4)  # error
    await without_context(4, 5)  # error
