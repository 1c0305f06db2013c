"""Kills of the functions that look after a turn whose own process was killed."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from local.emulator.launch import Launched, Launcher, NewLauncher
from local.emulator.sandbox import Sandbox
from local.template import Template
from tests.faults import wire
from tests.faults.client import Client, a_moment
from tests.faults.house import House
from tests.fixtures.proxy import Hold

SecondKill = Callable[[House, Client], Awaitable[None]]


class ColdKills:
    """Kills a function's process in its cold start, before it asks for work."""

    def __init__(self, launcher: NewLauncher) -> None:
        self._launcher = launcher
        self._left: dict[str, int] = {}

    def next_start(self, house: House, function: str) -> None:
        """Have the function's next invocation start cold, and kill that start."""
        self._left[function] = 1
        for process in house.emulator.processes(function):
            house.kill_process(process.pid)

    def of(self, function: str) -> SecondKill:
        async def kill(house: House, _: Client) -> None:
            self.next_start(house, function)

        return kill

    def left(self, function: str) -> int:
        """How many starts are still to be killed."""
        return self._left.get(function, 0)

    def launcher(self, sandbox: Sandbox, variables: Mapping[str, str], on_line: Callable[[str], None]) -> Launcher:
        return _Doomed(self, sandbox.function.short_name, self._launcher(sandbox, variables, on_line))

    def take(self, function: str) -> bool:
        """Return whether a process that has just been started is to be killed."""
        if not self.left(function):
            return False
        self._left[function] -= 1
        return True


class _Doomed:
    def __init__(self, kills: ColdKills, function: str, launcher: Launcher) -> None:
        self._kills = kills
        self._function = function
        self._inner = launcher

    async def launch(self, runtime_api: str) -> Launched:
        launched = await self._inner.launch(runtime_api)
        if self._kills.take(self._function):
            with suppress(ProcessLookupError):
                os.kill(launched.pid, signal.SIGKILL)
        return launched

    async def close(self) -> None:
        await self._inner.close()


async def no_checks_left(house: House) -> None:
    """Wait until the watch function has nothing to do, so that its next invocation is for the turn that follows."""
    sqs, name = house.servers.aws.sqs, Template().queues["WatchQueue"].name
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    while True:
        found = await asyncio.to_thread(sqs.get_queue_attributes, QueueUrl=url, AttributeNames=["All"])
        counts = (value for name, value in found["Attributes"].items() if name.startswith("ApproximateNumber"))
        if not any(map(int, counts)):
            return
        await a_moment()


async def in_check(house: House, client: Client) -> None:
    """Kill the watch function while it checks the client's turn."""
    async with house.registry.holding(wire.look(client.session), "request") as hold:
        await _killed(house, client, "watch", hold)


async def before_takeover(house: House, client: Client) -> None:
    """Kill the run function before it has claimed the client's turn, which it has found dead."""
    async with house.registry.holding(wire.claim(client.session), "request") as hold:
        await _killed(house, client, "run", hold)


async def _killed(house: House, client: Client, function: str, hold: Hold) -> None:
    await hold.reached()
    session = client.session.encode()
    for process in house.emulator.running(function):
        if session in process.event:
            house.kill_process(process.pid)
    hold.lose()
