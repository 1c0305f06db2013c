"""SIGKILL while a turn writes: the session goes on, with all that was acknowledged and nothing twice.

The stages between its writes are in `tests/turns/test_continue_run`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal

import pytest

from tests.faults import wire
from tests.faults.client import Client, Stream
from tests.faults.house import House
from tests.faults.truth import stored_text
from tests.fixtures.wire_formats import Matches

AT_ONCE = 3
LONG = "[slow:20][long:60]"


@dataclass(frozen=True)
class Stage:
    """A write of a turn, and how far it has come when the process dies."""

    name: str
    held: Callable[[str], Matches]
    server: Literal["registry", "storage"] = "storage"
    answered: bool = False
    """The server has done what it was asked; only its answer is held."""
    arrives_late: bool = False
    """What was held reaches the server after the kill, as bytes on the wire do."""
    prompt: str = "[echo:This is all there is to say.]"


UNHEARD = Stage("before the message", wire.begin)
"""Not even the question is there afterwards. Else the next request finishes the turn."""
STAGES = [
    UNHEARD,
    Stage("storing the message", wire.begin, arrives_late=True),
    Stage("message stored", wire.begin, answered=True),
    Stage("before a record", lambda s: wire.chunk(s, 1), "registry", prompt=LONG),
    Stage("record written", lambda s: wire.chunk(s, 1), "registry", answered=True, prompt=LONG),
    Stage("in the transaction", wire.insert, answered=True),
    Stage("before the commit", wire.commit),
    Stage("in the commit", wire.commit, arrives_late=True),
    Stage("before finish", wire.commit, answered=True),
]


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
    proxy = house.registry if stage.server == "registry" else house.storage
    async with proxy.holding(stage.held(client.session), "answer" if stage.answered else "request") as hold:
        exchange = client.ask(stage.prompt)
        await hold.reached()
        house.kill(client)
        if not stage.arrives_late:
            hold.lose()
        dead = await exchange.end()
    after = await client.accepted("[echo:next]")
    return Aftermath(client, dead, after)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
async def test_the_session_goes_on_after_a_kill(
    house: House, aftermaths: dict[str, asyncio.Task[Aftermath]], stage: Stage
) -> None:
    aftermath = await aftermaths[stage.name]
    dead, after = aftermath.dead, aftermath.after

    assert dead.finished_as is None
    assert (after.status, after.finished_as, after.text) == (200, "complete", "next")
    assert after.turn_number == (2 if stage is UNHEARD else 3)
    conversation = house.check(aftermath.client)
    if stage is not UNHEARD:
        assert conversation.answers[1]["status"] == "complete"
        assert stored_text(conversation.answers[1]).startswith(dead.text)
