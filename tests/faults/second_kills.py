"""Kills of the functions that look after a turn whose own process was killed."""

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from local.emulator.launch import Launched, Launcher, NewLauncher
from local.emulator.sandbox import Sandbox
from tests.faults import wire
from tests.faults.client import Client
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


async def before_takeover(house: House, client: Client) -> None:
    """Kill the run function before it has taken over the client's turn, which it has found dead."""
    async with house.storage.holding(wire.takeover(client.session), "request") as hold:
        await _killed(house, client, "run", hold)


async def after_takeover(house: House, client: Client) -> None:
    """Kill the run function when it has just taken over the client's turn."""
    async with house.storage.holding(wire.takeover(client.session), "answer") as hold:
        await _killed(house, client, "run", hold)


async def _killed(house: House, client: Client, function: str, hold: Hold) -> None:
    await hold.reached()
    session = client.session.encode()
    for process in house.emulator.running(function):
        if session in process.event:
            house.kill_process(process.pid)
    hold.lose()
