"""The second part of `make continue`: real processes are killed, and a turn kills every process that works on it.

Then how long a killed turn takes to be finished, with the lease and the sweep as deployed.
"""

import asyncio
import logging
import os
import random
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from local.emulator.launch import Launched, Launcher, NewLauncher
from local.emulator.sandbox import Sandbox
from omniagent.settings import Settings
from tests.faults import wire
from tests.faults.client import Client
from tests.faults.house import FUNCTIONS_THAT_FINISH, LEASE_SECONDS, TALKING, House, Servers, open_house, open_servers
from tests.fixtures.proxy import Side
from tests.fixtures.zygote import forks
from tests.turns.counts import write_down

SWEPT_SECONDS = 15.0
"""The sweep is once a second here; a process starts, and a busy machine takes its time."""
KILLS = 10
COMMIT_KILLS = 3
SECOND_KILLS = 3
"""Of each kind."""
MOST_EVENTS = 12
"""A turn sends more: it is killed before its end."""
DEPLOYED_LEASE_SECONDS = Settings().lease_seconds
DEPLOYED = {"TICK_SECONDS": str(Settings().tick_seconds), "LEASE_SECONDS": str(DEPLOYED_LEASE_SECONDS)}
DEPLOYED_SWEEP_SECONDS = 60.0
RECOVERIES = 3
"""Of each kind."""
SecondKill = Callable[[House, Client], Awaitable[None]]


class ColdKills:
    """Kills a function's process in its cold start, before it asks for work."""

    def __init__(self, launcher: NewLauncher) -> None:
        self._launcher = launcher
        self.doomed: set[str] = set()
        """The functions whose next start is killed."""

    async def next_start(self, house: House, _: Client) -> None:
        """Have the next invocation of the run function start cold, and kill that start."""
        self.doomed.add("run")
        for process in house.emulator.processes("run"):
            house.emulator.kill(process.pid)

    def launcher(self, sandbox: Sandbox, variables: Mapping[str, str], on_line: Callable[[str], None]) -> Launcher:
        return _Doomed(self.doomed, sandbox.function.short_name, self._launcher(sandbox, variables, on_line))


class _Doomed:
    def __init__(self, doomed: set[str], function: str, launcher: Launcher) -> None:
        self._doomed = doomed
        self._function = function
        self._inner = launcher

    async def launch(self, runtime_api: str) -> Launched:
        launched = await self._inner.launch(runtime_api)
        if self._function in self._doomed:
            self._doomed.discard(self._function)
            with suppress(ProcessLookupError):
                os.kill(launched.pid, signal.SIGKILL)
        return launched

    async def close(self) -> None:
        await self._inner.close()


def at_takeover(side: Side) -> SecondKill:
    """Kill the run function when it asks for a turn that it has found dead, or has just taken it over."""

    async def kill(house: House, client: Client) -> None:
        async with house.storage.holding(wire.takeover(client.session), side) as hold:
            await hold.reached()
            for process in house.emulator.running("run"):
                if client.session.encode() in process.event:
                    house.emulator.kill(process.pid)
            hold.lose()

    return kill


async def complete(house: House, client: Client, since: float) -> float:
    """Wait for the stored answer, without asking anybody for it. Returns the seconds until it was there."""
    status = (await house.finished(client))["status"]
    assert status == "complete", status
    return time.monotonic() - since


async def killed(house: House, events: int) -> float:
    """Kill a turn at this event of its stream. Returns the seconds until somebody has finished it."""
    client = house.client()
    _, at = await house.killed(client, TALKING, lambda stream: len(stream.events) >= events)
    return await complete(house, client, at)


async def killed_in_commit(house: House) -> float:
    """Kill a turn whose transaction is open: MongoDB keeps its locks for a minute, unless somebody ends it."""
    client = house.client()
    async with house.storage.holding(wire.commit(client.session), "request") as hold:
        exchange = client.ask(TALKING)
        await hold.reached()
        at = house.kill(client)
        hold.lose()
        await exchange.end()
    return await complete(house, client, at)


async def killed_twice(house: House, second_kill: SecondKill) -> float:
    """Kill a turn, and then the function that is about to continue it."""
    client = house.client()
    _, at = await house.killed(client, TALKING, lambda stream: stream.kinds.count("text-delta") >= 3)
    await second_kill(house, client)
    return await complete(house, client, at)


async def poisoned(house: House) -> str:
    """Run a turn that kills every process until it is given up. Returns the answer of another user meanwhile."""
    client, other = house.client(), house.client()
    await client.ask("[tool:die {}]").end()
    others = (await other.say("[echo:I am well.]")).text
    assert (await house.finished(client))["status"] == "interrupted"
    await house.log.has("dead turn closed")
    return others


async def kill_processes(servers: Servers) -> None:
    rng, cold_kills = random.Random(1), ColdKills(forks())
    async with open_house(servers, functions=FUNCTIONS_THAT_FINISH, launcher=cold_kills.launcher) as house:
        seconds = [await killed(house, rng.randint(1, MOST_EVENTS)) for _ in range(KILLS)]
        longest = max(seconds + [await killed_in_commit(house) for _ in range(COMMIT_KILLS)])
        assert longest <= LEASE_SECONDS + SWEPT_SECONDS
        write_down(
            "processes",
            f"{KILLS} killed at an event of their stream and {COMMIT_KILLS} in the commit of their answer, all "
            f"complete without any request, longest {longest:.1f} s (lease {LEASE_SECONDS:g} s)",
        )
        kinds: dict[str, SecondKill] = {
            "the run function in its cold start": cold_kills.next_start,
            "the run function before its takeover": at_takeover("request"),
            "the run function after its takeover": at_takeover("answer"),
        }
        times = {
            name: max([await killed_twice(house, kill) for _ in range(SECOND_KILLS)]) for name, kill in kinds.items()
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


async def by_page(client: Client, _: str) -> None:
    """A page reads the answer, and resumes whenever its stream ends."""
    assert (await client.read_on())[-1].finished_as == "complete"


async def by_retry(client: Client, message_id: str) -> None:
    """The client sends its message again."""
    assert (await client.say(TALKING, message_id)).finished_as == "complete"


async def by_nobody(_: Client, __: str) -> None:
    """Only the sweep comes."""


async def recovered(house: House, look: Callable[[Client, str], Awaitable[None]]) -> float:
    client = house.client()
    dead, at = await house.killed(client, TALKING, lambda stream: stream.kinds.count("text-delta") >= 3)
    await look(client, str(dead.message_id))
    return await complete(house, client, at)


async def measure_recovery(servers: Servers) -> None:
    kinds = {
        "with an open page": (by_page, DEPLOYED_LEASE_SECONDS + 3),
        "with a retry": (by_retry, DEPLOYED_LEASE_SECONDS + 3),
        "without a client": (by_nobody, 75.0),
    }
    longest: dict[str, float] = {}
    async with open_house(
        servers, DEPLOYED, functions=FUNCTIONS_THAT_FINISH, sweep_seconds=DEPLOYED_SWEEP_SECONDS
    ) as house:
        await house.warm_up()
        for name, (look, _) in kinds.items():
            longest[name] = max(await asyncio.gather(*(recovered(house, look) for _ in range(RECOVERIES))))
    listed = ", ".join(f"{longest[name]:.1f} s {name} (limit {limit:g} s)" for name, (_, limit) in kinds.items())
    result = f"the slowest of {RECOVERIES} killed turns was stored after {listed}"
    print(f"lease {DEPLOYED_LEASE_SECONDS:g} s, sweep every {DEPLOYED_SWEEP_SECONDS:g} s: {result}")
    assert all(longest[name] <= limit for name, (_, limit) in kinds.items()), longest
    write_down("recovery", result)


async def main() -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        async with open_servers(Path(folder)) as servers:
            await kill_processes(servers)
            await measure_recovery(servers)


if __name__ == "__main__":
    asyncio.run(main())
