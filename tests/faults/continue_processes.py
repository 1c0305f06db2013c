"""The second half of `make continue`: real processes are killed, and a turn kills every process that works on it."""

import asyncio
import logging
import random
import tempfile
import time
from pathlib import Path

from tests.faults.client import Client, a_moment
from tests.faults.house import LEASE_SECONDS, House, open_house, open_servers
from tests.faults.truth import Tally
from tests.turns.continue_run import WATCH_SECONDS

TALKING = '[slow:20][echo:Let me see what I can do for you.][tool:charge {"order": "o1"}]'
KILLS = 10
MOST_EVENTS = 12
"""A turn sends more: it is killed before its end."""


async def ended(house: House, client: Client) -> str:
    """Wait for the stored answer, without asking anybody for it. Returns its status."""
    while not (answers := house.read(client).answers):
        await a_moment()
    status: str = answers[0]["status"]
    return status


async def killed(house: House, rng: random.Random) -> float:
    """Kill a turn at a random event of its stream. Returns the seconds until somebody has finished it."""
    client = house.client()
    exchange = client.ask(TALKING)
    events = rng.randint(1, MOST_EVENTS)
    await exchange.until(lambda stream: len(stream.events) >= events)
    at = house.kill(client)
    await exchange.end()
    status = await ended(house, client)
    assert status == "complete", f"{status} after a kill at event {events}"
    return time.monotonic() - at


async def poisoned(house: House) -> str:
    """Run a turn that kills every process until it is given up. Returns the answer of another user meanwhile."""
    client, other = house.client(), house.client()
    await client.ask("[tool:die {}]").end()
    others = (await other.say("[echo:I am well.]")).text
    assert await ended(house, client) == "interrupted"
    await house.log.has("interrupted turn repaired")
    return others


async def main() -> None:
    logging.disable(logging.CRITICAL)
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_servers(Path(folder)) as servers,
            open_house(servers, Tally(), functions=("chat", "sessions", "run")) as house,
        ):
            seconds = [await killed(house, rng) for _ in range(KILLS)]
            longest = max(seconds)
            print(f"processes: {KILLS} killed, all complete without any request, longest {longest:.1f} s", flush=True)
            assert longest <= LEASE_SECONDS + WATCH_SECONDS
            others = await poisoned(house)
            print(f"poisoned: interrupted and counted for its alarm; another user meanwhile: {others!r}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
