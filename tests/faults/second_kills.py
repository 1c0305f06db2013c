"""Kills of the run function, which looks after a turn whose own process was killed."""

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from local.emulator.launch import Launched, Launcher, NewLauncher
from local.emulator.sandbox import Sandbox
from tests.faults import wire
from tests.faults.client import Client
from tests.faults.house import House
from tests.fixtures.proxy import Side

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
