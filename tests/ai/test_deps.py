"""Dependencies of an agent's tools: opened once, shared, closed in order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from omniagent import Agent, ConfigurationError


def agent_with(deps: Any) -> Agent:
    return Agent("shop", "", deps=deps)


class Pool:
    def __init__(self) -> None:
        self.closed = False


class ClosingPool(Pool):
    async def __aenter__(self) -> "ClosingPool":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True


def make() -> Pool:
    return Pool()


async def make_later() -> Pool:
    await asyncio.sleep(0)
    return Pool()


@contextmanager
def opened() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.closed = True


@asynccontextmanager
async def opened_later() -> AsyncIterator[Pool]:
    pool, task = Pool(), asyncio.current_task()
    try:
        yield pool
    finally:
        # A task group, for one, may only be left by the task that entered it.
        pool.closed = asyncio.current_task() is task


@pytest.mark.parametrize("factory", [make, make_later, opened, opened_later, Pool, ClosingPool, partial(make)])
async def test_a_factory_is_called_once_and_its_value_shared(factory: Callable[[], Any]) -> None:
    agent = agent_with(factory)
    pools = await asyncio.gather(*(agent.open_deps() for _ in range(5)))
    assert isinstance(pools[0], Pool)
    assert {id(pool) for pool in pools} == {id(pools[0])}
    assert await agent.open_deps() is pools[0]
    await agent.aclose()
    await agent.aclose()
    assert pools[0].closed is (factory in {opened, opened_later, ClosingPool})
    assert await agent.open_deps() is not pools[0]
    await agent.aclose()


@pytest.mark.parametrize("value", [None, 7, {"a": 1}, Pool(), ClosingPool(), Mock()])
async def test_any_other_object_is_the_value_itself(value: Any) -> None:
    agent = agent_with(value)
    assert await agent.open_deps() is value
    await agent.aclose()
    assert not isinstance(value, Pool) or not value.closed


async def test_a_failed_opening_fails_all_who_waited_and_is_tried_again() -> None:
    openings: list[str] = []

    async def flaky() -> str:
        openings.append("try")
        await asyncio.sleep(0)
        if len(openings) == 1:
            raise OSError("no route")
        return "open"

    agent = agent_with(flaky)
    outcomes = await asyncio.gather(agent.open_deps(), agent.open_deps(), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["no route", "no route"]
    assert await agent.open_deps() == "open"
    assert len(openings) == 2
    await agent.aclose()


async def test_a_turn_that_is_stopped_while_it_waits_does_not_stop_the_opening() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        started.set()
        await go_on.wait()
        return "open"

    agent = agent_with(slow)
    first, second = asyncio.create_task(agent.open_deps()), asyncio.create_task(agent.open_deps())
    await started.wait()
    first.cancel()
    await asyncio.wait([first])
    go_on.set()
    assert await second == "open"
    await agent.aclose()


async def test_closing_while_opening_fails_those_who_wait() -> None:
    started = asyncio.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    agent = agent_with(endless)
    waiting = asyncio.create_task(agent.open_deps())
    await started.wait()
    await agent.aclose()
    with pytest.raises(ConfigurationError, match="closed while opening"):
        await waiting


def test_the_end_of_the_event_loop_closes_and_the_next_loop_opens_again() -> None:
    agent = agent_with(opened_later)
    first = asyncio.run(agent.open_deps())
    second = asyncio.run(agent.open_deps())
    assert first is not second
    assert first.closed
    assert second.closed


async def generator() -> AsyncIterator[int]:
    yield 1


def needs(url: str, *, size: int = 1) -> str:
    return url * size


@pytest.mark.parametrize(
    ("deps", "said"),
    [
        (make_later, "deps is a coroutine: give the function itself, without calling it"),
        (opened, "deps is a context manager in use: give its function"),
        (opened_later, "deps is a context manager in use: give its function"),
        (lambda: generator, "deps is a generator: decorate it with @asynccontextmanager"),
        (lambda: needs, "deps is called without arguments: missing a required argument: .url"),
    ],
)
async def test_misuse_is_refused_with_what_to_write(deps: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"agent shop: {said}"):
        agent_with(deps())
