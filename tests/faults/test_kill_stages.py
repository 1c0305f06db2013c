"""SIGKILL at every stage of a turn: the session goes on, with all that was acknowledged and nothing twice."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import pytest

from tests.faults import wire
from tests.faults.client import Client, Exchange, Stream
from tests.faults.house import House
from tests.faults.truth import stored_text
from tests.fixtures.proxy import Hold
from tests.fixtures.wire_formats import Matches

Fate = Literal["nothing", "complete"]
"""What is there of the turn afterwards: not even the question, or all of it, finished by the next request."""


@dataclass(frozen=True)
class Stage:
    """A moment in the life of a turn, and how to get there."""

    name: str
    leaves: Fate
    held: Callable[[str], Matches] | None = None
    server: Literal["registry", "storage"] = "registry"
    answered: bool = False
    """The server has done what it was asked; only its answer is held."""
    arrives_late: bool = False
    """What was held reaches the server after the kill, as bytes on the wire do."""
    prompt: str = "[echo:This is all there is to say.]"
    seen: Callable[[Exchange], Awaitable[object]] | None = None


HELD = [
    Stage("before the message", "nothing", wire.begin, "storage"),
    Stage("storing the message", "complete", wire.begin, "storage", arrives_late=True),
    Stage("message stored", "complete", wire.begin, "storage", answered=True),
    Stage("before a record", "complete", lambda s: wire.chunk(s, 1), prompt="[slow:20][long:60]"),
    Stage("record written", "complete", lambda s: wire.chunk(s, 1), answered=True, prompt="[slow:20][long:60]"),
    Stage("in the transaction", "complete", lambda s: wire.insert(s, "assistant"), "storage", answered=True),
    Stage("before the commit", "complete", lambda s: wire.commit(s, "assistant"), "storage"),
    Stage("in the commit", "complete", lambda s: wire.commit(s, "assistant"), "storage", arrives_late=True),
    Stage("before finish", "complete", lambda s: wire.commit(s, "assistant"), "storage", answered=True),
]
SEEN = [
    Stage("before the first token", "complete", prompt="[slow:300][echo:Well.]", seen=lambda e: e.seen("start")),
    Stage("in text", "complete", prompt="[slow:20][long:100]", seen=lambda e: e.seen("text-delta", 30)),
    Stage("in reasoning", "complete", prompt="[reason][slow:50]", seen=lambda e: e.seen("reasoning-delta", 5)),
    Stage(
        "in the arguments of a tool",
        "complete",
        prompt='[slow:100][tool:pause {"seconds": 0.345678}]',
        seen=lambda e: e.seen("tool-input-delta", 2),
    ),
    Stage(
        "in a tool",
        "complete",
        prompt='[tool:pause {"seconds": 15}]',
        seen=lambda e: e.seen("tool-input-available"),
    ),
    Stage(
        "between steps",
        "complete",
        prompt="[tool:blink][then][slow:300][echo:Well.]",
        seen=lambda e: e.seen("start-step", 2),
    ),
]
STAGES = [*HELD, *SEEN]
AT_ONCE = 3


@dataclass(frozen=True)
class Aftermath:
    """What a client heard of the turn that was killed, and of the next one."""

    client: Client
    dead: Stream
    after: Stream


@pytest.fixture(scope="module")
async def aftermaths(house: House) -> AsyncIterator[dict[str, asyncio.Task[Aftermath]]]:
    """Every stage, some at the same time: most of it is waiting for leases. Each test looks at one."""
    places = asyncio.Semaphore(AT_ONCE)

    async def lived_through(stage: Stage) -> Aftermath:
        async with places:
            return await live_through(house, stage)

    async with asyncio.TaskGroup() as group:
        yield {stage.name: group.create_task(lived_through(stage)) for stage in STAGES}


async def live_through(house: House, stage: Stage) -> Aftermath:
    """Kill the second turn of a session at a stage, and go on talking."""
    client = house.client()
    assert (await client.say("[echo:first]")).finished_as == "complete"
    await house.at_rest(client)  # its last record may still be on its way
    async with at(house, client, stage) as (exchange, hold):
        killed_at = house.kill(client)
        if hold is not None and not stage.arrives_late:
            hold.lose()
        dead = await exchange.end()
    after = await client.accepted("[echo:next]")
    house.tally.waits.append(after.began_at - killed_at)
    return Aftermath(client, dead, after)


@asynccontextmanager
async def at(house: House, client: Client, stage: Stage) -> AsyncIterator[tuple[Exchange, Hold | None]]:
    """Ask, and wait until the turn has come to the stage."""
    if stage.held is None:
        exchange = client.ask(stage.prompt)
        assert stage.seen is not None
        await stage.seen(exchange)
        yield exchange, None
        return
    proxy = house.registry if stage.server == "registry" else house.storage
    async with proxy.holding(stage.held(client.session), "answer" if stage.answered else "request") as hold:
        exchange = client.ask(stage.prompt)
        await hold.reached()
        yield exchange, hold


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
async def test_the_session_goes_on_after_a_kill(
    house: House, aftermaths: dict[str, asyncio.Task[Aftermath]], stage: Stage
) -> None:
    aftermath = await aftermaths[stage.name]
    dead, after = aftermath.dead, aftermath.after

    assert dead.finished_as is None
    assert (after.status, after.finished_as, after.text) == (200, "complete", "next")
    assert after.turn_number == (2 if stage.leaves == "nothing" else 3)
    conversation = house.check(aftermath.client)
    if stage.leaves != "nothing":
        assert conversation.answers[1]["status"] == stage.leaves
        assert stored_text(conversation.answers[1]).startswith(dead.text)
