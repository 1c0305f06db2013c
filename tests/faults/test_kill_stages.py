"""SIGKILL at every stage of a turn: the session goes on, with all that was acknowledged and nothing twice."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import pytest

from tests.faults import wire
from tests.faults.client import Client, Exchange
from tests.faults.gate import Hold
from tests.faults.house import House

Fate = Literal["nothing", "interrupted", "complete"]
"""What is there of the turn afterwards: not even the question, an answer that was cut off, or all of it."""


@dataclass(frozen=True)
class Stage:
    """A moment in the life of a turn, and how to get there."""

    name: str
    leaves: Fate
    held: Callable[[str], wire.Matches] | None = None
    gate: Literal["registry", "storage"] = "registry"
    answered: bool = False
    """The server has done what it was asked; only its answer is held."""
    arrives_late: bool = False
    """What was held reaches the server after the kill, as bytes on the wire do."""
    prompt: str = "[echo:This is all there is to say.]"
    seen: Callable[[Exchange], Awaitable[object]] | None = None


HELD = [
    Stage("before the claim", "nothing", wire.claim),
    Stage("on the way to the claim", "nothing", wire.claim, arrives_late=True),
    Stage("after the claim", "nothing", wire.claim, answered=True),
    Stage("storing the message", "nothing", lambda s: wire.commit(s, "user"), "storage"),
    Stage("message stored", "interrupted", lambda s: wire.commit(s, "user"), "storage", answered=True),
    Stage("in the transaction", "interrupted", lambda s: wire.insert(s, "assistant"), "storage", answered=True),
    Stage("before the commit", "interrupted", lambda s: wire.commit(s, "assistant"), "storage"),
    Stage("in the commit", "complete", lambda s: wire.commit(s, "assistant"), "storage", arrives_late=True),
    Stage("before finish", "complete", lambda s: wire.commit(s, "assistant"), "storage", answered=True),
    Stage("before release", "complete", wire.release),
    Stage("after release", "complete", wire.release, answered=True),
]
SEEN = [
    Stage("before the first token", "interrupted", prompt="[stall:first]", seen=lambda e: e.seen("start")),
    Stage("in text", "interrupted", prompt="[slow:20][long:400]", seen=lambda e: e.seen("text-delta", 30)),
    Stage("in reasoning", "interrupted", prompt="[reason][slow:40]", seen=lambda e: e.seen("reasoning-delta", 5)),
    Stage(
        "in the arguments of a tool",
        "interrupted",
        prompt='[slow:100][tool:pause {"seconds": 12.345678}]',
        seen=lambda e: e.seen("tool-input-delta", 2),
    ),
    Stage(
        "in a tool",
        "interrupted",
        prompt='[tool:pause {"seconds": 15}]',
        seen=lambda e: e.seen("tool-input-available"),
    ),
    Stage(
        "between steps",
        "interrupted",
        prompt="[tool:blink][then][stall:first]",
        seen=lambda e: e.seen("start-step", 2),
    ),
]
stages = pytest.mark.parametrize("stage", [*HELD, *SEEN], ids=lambda stage: stage.name)


@asynccontextmanager
async def at(house: House, client: Client, stage: Stage) -> AsyncIterator[tuple[Exchange, Hold | None]]:
    """Ask, and wait until the turn has come to the stage."""
    if stage.held is None:
        exchange = client.ask(stage.prompt)
        assert stage.seen is not None
        await stage.seen(exchange)
        yield exchange, None
        return
    gate = house.registry if stage.gate == "registry" else house.storage
    async with gate.holding(stage.held(client.session), "answer" if stage.answered else "request") as hold:
        exchange = client.ask(stage.prompt)
        await hold.reached()
        yield exchange, hold


@stages
async def test_the_session_goes_on_after_a_kill(house: House, stage: Stage) -> None:
    client = house.client()
    assert (await client.say("[echo:first]")).finished_as == "complete"

    async with at(house, client, stage) as (exchange, hold):
        killed_at = house.kill()
        if hold is not None:
            hold.let_pass() if stage.arrives_late else hold.lose()
        dead = await exchange.end()
    assert dead.finished_as is None
    after = await client.accepted("[echo:next]")
    house.tally.waits.append(time.monotonic() - killed_at)

    assert (after.status, after.finished_as, after.text) == (200, "complete", "next")
    conversation = house.check(client)
    assert after.turn_number == (2 if stage.leaves == "nothing" else 3)
    if stage.leaves != "nothing":
        answer = conversation.answers[1]
        assert answer["status"] == stage.leaves
    if dead.status == 200 and stage.leaves == "interrupted":
        house.check_interrupted(client, dead)
