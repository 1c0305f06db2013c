"""The second half of `make continue`: real processes are killed, and a turn kills every process that works on it."""

import asyncio
import logging
import random
import tempfile
import time
from pathlib import Path

from tests.faults import second_kills, wire
from tests.faults.client import Client, a_moment
from tests.faults.house import LEASE_SECONDS, House, open_house, open_servers
from tests.faults.second_kills import ColdKills, SecondKill
from tests.faults.truth import Tally
from tests.fixtures.zygote import forks
from tests.turns.counts import write_down

FUNCTIONS = ("chat", "sessions", "run")
TALKING = '[slow:20][echo:Let me see what I can do for you.][tool:charge {"order": "17"}]'
SWEPT_SECONDS = 15.0
"""The sweep is once a second here; a process starts, and a busy machine takes its time."""
KILLS = 10
COMMIT_KILLS = 3
SECOND_KILLS = 3
"""Of each kind."""
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


async def killed_in_commit(house: House) -> float:
    """Kill a turn whose transaction is open: MongoDB keeps its locks for a minute, unless somebody ends it."""
    client = house.client()
    async with house.storage.holding(wire.commit(client.session, "assistant"), "request") as hold:
        exchange = client.ask(TALKING)
        await hold.reached()
        at = house.kill(client)
        hold.lose()
        await exchange.end()
    status = await ended(house, client)
    assert status == "complete", f"{status} after a kill in the commit"
    return time.monotonic() - at


async def killed_twice(house: House, second_kill: SecondKill) -> float:
    """Kill a turn, and then the function that is about to continue it."""
    client = house.client()
    exchange = client.ask(TALKING)
    await exchange.seen("text-delta", 3)
    at = time.monotonic()
    house.kill_process(house.answering(client))
    await exchange.end()
    await second_kill(house, client)
    status = await ended(house, client)
    assert status == "complete", f"{status} after a second kill"
    return time.monotonic() - at


async def poisoned(house: House) -> str:
    """Run a turn that kills every process until it is given up. Returns the answer of another user meanwhile."""
    client, other = house.client(), house.client()
    await client.ask("[tool:die {}]").end()
    others = (await other.say("[echo:I am well.]")).text
    assert await ended(house, client) == "interrupted"
    await house.log.has("dead turn closed")
    return others


async def main() -> None:
    logging.disable(logging.CRITICAL)
    rng = random.Random(1)
    cold_kills = ColdKills(forks())
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_servers(Path(folder)) as servers,
            open_house(servers, Tally(), functions=FUNCTIONS, launcher=cold_kills.launcher) as house,
        ):
            seconds = [await killed(house, rng) for _ in range(KILLS)]
            in_commit = [await killed_in_commit(house) for _ in range(COMMIT_KILLS)]
            longest = max(seconds + in_commit)
            assert longest <= LEASE_SECONDS + SWEPT_SECONDS
            write_down(
                "processes",
                f"{KILLS} killed at an event of their stream and {COMMIT_KILLS} in the commit of their answer, all "
                f"complete without any request, longest {longest:.1f} s (lease {LEASE_SECONDS:g} s)",
            )
            kinds: dict[str, SecondKill] = {
                "the run function in its cold start": cold_kills.of("run"),
                "the run function before its takeover": second_kills.before_takeover,
                "the run function after its takeover": second_kills.after_takeover,
            }
            times = {
                name: max([await killed_twice(house, kill) for _ in range(SECOND_KILLS)])
                for name, kill in kinds.items()
            }
            assert max(times.values()) <= LEASE_SECONDS + SWEPT_SECONDS, times
            listed = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items())
            write_down(
                "killed as well",
                f"{SECOND_KILLS} of each, all complete without any request, longest from the turn's own kill: {listed} "
                f"(lease {LEASE_SECONDS:g} s)",
            )
            others = await poisoned(house)
            write_down("poisoned", f"interrupted and counted for its alarm; another user meanwhile: {others!r}")


if __name__ == "__main__":
    asyncio.run(main())
