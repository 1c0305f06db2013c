"""Faults while people talk: kills, freezes, servers that are gone, silent or slow."""

import asyncio
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from local.emulator import Process
from tests.faults import wire
from tests.faults.house import House
from tests.fixtures.proxy import Proxy, Side

LEASE_SECONDS = 1.5
OUTAGE = "outage"
"""Under this name an outage is in the log of the house."""
SERVERS = ("MongoDB", "DynamoDB", "model")
STAGE_SECONDS = 3.0
"""How long a kill waits for its stage; then it takes whatever runs."""
OUTAGE_SECONDS = (0.3, 3.0)
FREEZE_SECONDS = (0.2, 2 * LEASE_SECONDS)
JITTER_SECONDS = 0.5
POLL_SECONDS = 0.05
DELAY_SECONDS = (0.05, 0.4)
OF_MONGODB = ("insert", "update", "findAndModify")
OF_DYNAMODB = ("PutItem", "UpdateItem", "DeleteItem")
"""What turns ask of their servers: every third kill hits a process at one of these."""


@dataclass(frozen=True)
class Size:
    """How much is to happen."""

    turns: int
    users: int
    """Each with two sessions."""
    kills: int
    freezes: int
    partitions: int
    """Of each server."""
    slow_spells: int
    """Of each server."""
    restarts: int
    """Of MongoDB."""
    seed: int = 20260501


@dataclass
class Weather:
    """Brings so many faults of each kind, in an order of chance, spread evenly over the turns."""

    house: House
    chance: random.Random
    size: Size
    counts: Counter[str] = field(default_factory=Counter)
    _one_at_a_time: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def blow(self, reached: Callable[[float], Awaitable[None]]) -> None:
        """Bring one fault after the other; those that last overlap with what follows."""
        faults = self._faults()
        async with asyncio.TaskGroup() as lasting:
            for number, fault in enumerate(faults, start=1):
                await reached(number / (len(faults) + 1))
                await asyncio.sleep(self.chance.uniform(0, JITTER_SECONDS))
                match fault.split():
                    case ["kill"]:
                        await self._kill(at_a_stage=number % 3 == 0)
                    case ["freeze"]:
                        lasting.create_task(self._freeze())
                    case ["partition", server]:
                        lasting.create_task(self._partition(server))
                    case ["slow", server]:
                        lasting.create_task(self._slow(server))
                    case ["restart"]:
                        await self._restart()

    def _faults(self) -> list[str]:
        size = self.size
        of_a_server: Mapping[str, int] = {"partition": size.partitions, "slow": size.slow_spells}
        faults = [f"{fault} {server}" for fault, times in of_a_server.items() for server in SERVERS * times]
        faults += ["kill"] * size.kills + ["freeze"] * size.freezes + ["restart"] * size.restarts
        self.chance.shuffle(faults)
        return faults

    async def _kill(self, *, at_a_stage: bool) -> None:
        if at_a_stage and await self._kill_at_a_stage():
            return
        # Most processes answer chats; now and then the one that stops them or makes a summary is hit.
        self._end(await self._any_running())

    async def _kill_at_a_stage(self) -> bool:
        """Kill a process while its request, or the answer to it, is on the way. False when none came."""
        stage = self.chance.choice(OF_MONGODB + OF_DYNAMODB)
        proxy = self.house.storage if stage in OF_MONGODB else self.house.registry
        side: Side = "request" if self.chance.random() < 0.5 else "answer"
        async with proxy.holding(wire.of_any_turn(stage), side) as hold:
            with suppress(TimeoutError):
                async with asyncio.timeout(STAGE_SECONDS):
                    await hold.reached()
            if hold.message is None:
                return False
            session = wire.session_of(hold.message).encode()
            running = [process for process in self.house.emulator.running() if session in process.event]
            if not running:
                return False
            self._end(self.chance.choice(running))
            if self.chance.random() < 0.5:
                hold.lose()
        return True

    async def _any_running(self, function: str | None = None) -> Process:
        while True:
            if running := self.house.emulator.running(function):
                return self.chance.choice(running)
            await asyncio.sleep(POLL_SECONDS)

    def _end(self, process: Process) -> None:
        self.house.emulator.kill(process.pid)
        self.house.log.add("kill", f"{process.function} {process.request_id}: {process.event.decode()}")
        self.counts["kills"] += 1
        self.counts[f"kills {process.function}"] += 1

    async def _freeze(self) -> None:
        pid = (await self._any_running("chat")).pid
        with suppress(ProcessLookupError):  # it may be killed meanwhile
            os.killpg(pid, signal.SIGSTOP)
            self.counts["freezes"] += 1
            try:
                await asyncio.sleep(self.chance.uniform(*FREEZE_SECONDS))
            finally:
                os.killpg(pid, signal.SIGCONT)

    async def _partition(self, server: str) -> None:
        """Cut a server off: connections are refused, hang, or lose their answers."""
        async with self._one_at_a_time[server]:
            proxy = self._proxy(server)
            outage = self.chance.choice([proxy.down, proxy.silent, proxy.losing_answers])
            with outage():
                self.counts[f"partitions {server}"] += 1
                await self._lasts(f"{server} {outage.__name__}")

    async def _slow(self, server: str) -> None:
        async with self._one_at_a_time[server]:
            with self._proxy(server).slow(self.chance.uniform(*DELAY_SECONDS)):
                self.counts[f"slow {server}"] += 1
                await self._lasts(f"{server} slow")

    async def _lasts(self, what: str) -> None:
        seconds = self.chance.uniform(*OUTAGE_SECONDS)
        self.house.log.add(OUTAGE, f"{what} for {seconds:.1f} s")
        await asyncio.sleep(seconds)

    async def _restart(self) -> None:
        self.house.log.add(OUTAGE, "MongoDB restarts")
        await self.house.servers.restart_mongod()
        self.counts["restarts MongoDB"] += 1

    def _proxy(self, server: str) -> Proxy:
        servers = self.house.servers
        return {"MongoDB": servers.storage, "DynamoDB": servers.table, "model": servers.answers}[server]
