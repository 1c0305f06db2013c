"""An execution environment: one process of a function, and the Runtime API that it talks to."""

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum

from local.emulator.init_clock import InitClock
from local.emulator.invocation import FunctionFailed, Invocation
from local.emulator.launch import Launched, Launcher
from local.emulator.limits import Limits
from local.emulator.runtime_api import RuntimeApi


class State(StrEnum):
    """The state of an environment."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    ENDED = "ended"


class Environment:
    """Runs invocations in a process that is kept for the next: `most` at once, which is 1 except on Managed Instances.

    `freeze` stops the process in between.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        extra: Mapping[str, str],
        timeout: float,
        most: int,
        version: str,
        limits: Limits,
        freeze: bool,
        on_line: Callable[[str], None],
        on_end: Callable[["Environment"], None],
    ) -> None:
        """Prepare; `start` starts the process. It serves events for which its `extra` variables are meant."""
        self._launcher = launcher
        self.extra = extra
        self._timeout = timeout
        self._most = most
        self._version = version
        self._freeze = freeze
        self._on_line = on_line
        self._on_end = on_end
        self._api = RuntimeApi(
            limits,
            on_idle=self._became_idle,
            on_init_error=self._fail_start,
            on_answered=self._end_invocation if most > 1 else None,
        )
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._killed_because: FunctionFailed | None = None
        self._closing = False
        self._watch: asyncio.Task[None] | None = None
        self.invocations: list[Invocation] = []
        self.state = State.STARTING
        self.reserved = False
        self.retired = False
        self.pid = 0

    @property
    def has_room(self) -> bool:
        """Whether it can take another invocation."""
        return self.state in (State.IDLE, State.BUSY) and len(self.invocations) < self._most

    @property
    def finishing(self) -> bool:
        """Whether it has sent an answer and is about to ask for work again."""
        return self.state is State.BUSY and any(invocation.ended for invocation in self.invocations)

    def serves(self, extra: Mapping[str, str]) -> bool:
        """Whether it may be given an invocation that needs these more variables, once it is idle."""
        return not self.reserved and not self.retired and self.extra == extra

    async def start(self, seconds: float, most_seconds: float) -> None:
        """Start the process and wait until it asks for work. Raises FunctionFailed if it does not.

        `seconds` limits its own time, without waiting for a processor that others use; `most_seconds` the real time.
        """
        await self._api.start()
        launched = await self._launcher.launch(self._api.address)
        self.pid = launched.pid
        self._watch = asyncio.create_task(self._follow(launched))
        clock = InitClock(launched.pid, seconds, most_seconds)
        if not await clock.is_in_time(self._ready):
            failure = FunctionFailed.platform("Sandbox.Timedout", f"not started after {clock.limit:g} seconds")
            self.kill(failure)
            raise failure

    def run(self, invocation: Invocation) -> None:
        """Give the process an invocation. It has to answer and ask for the next one within its timeout."""
        self.state = State.BUSY
        self.reserved = False
        self.invocations.append(invocation)
        self._resting.clear()
        if self._freeze:
            self._signal(signal.SIGCONT)
        invocation.begin(self._timeout)
        timer = asyncio.get_running_loop().call_later(self._timeout, self._time_out, invocation)
        self._timers[invocation.request_id] = timer
        self._on_line(f"START RequestId: {invocation.request_id} Version: {self._version}")
        self._api.hand_over(invocation)

    async def rested(self) -> None:
        """Wait until the process runs no invocation."""
        await self._resting.wait()

    def kill(self, because: FunctionFailed | None = None) -> None:
        """Kill the process and its child processes."""
        self._killed_because = self._killed_because or because
        self._signal(signal.SIGKILL)

    def retire(self) -> None:
        """Take no further invocation: end now, or after the one that runs."""
        self.retired = True
        if self.state is State.IDLE and not self.reserved:
            self.kill()

    def pause(self, seconds: float) -> None:
        """Stop the process in the middle of its work, as a host that hangs, and let it go on later."""
        self._signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(seconds, self._signal, signal.SIGCONT)

    async def close(self) -> None:
        """Kill the process and wait for its end."""
        self._closing = True
        self.kill()
        if self._watch:
            await self._watch
        await self._api.close()

    def _became_idle(self) -> None:
        if not self._ready.done():
            self.state = State.IDLE
            self._ready.set_result(None)
            self._resting.set()
            return  # not frozen right after the start: an invocation is waiting
        if self._most > 1:
            return
        for invocation in list(self.invocations):
            self._end_invocation(invocation)
        if self._freeze:
            self._signal(signal.SIGSTOP)

    def _fail_start(self, failure: FunctionFailed) -> None:
        if not self._ready.done():
            self._ready.set_exception(failure)
            self._ready.exception()

    def _time_out(self, invocation: Invocation) -> None:
        message = f"RequestId: {invocation.request_id} Error: Task timed out after {self._timeout:.2f} seconds"
        self._on_line(message)
        failure = FunctionFailed.platform("Sandbox.Timedout", message)
        if self._most == 1:
            self.kill(failure)
        else:  # Managed Instances kill no process that serves others
            invocation.fail(failure)
            self._end_invocation(invocation)

    def _end_invocation(self, invocation: Invocation) -> None:
        if invocation not in self.invocations:
            return
        self.invocations.remove(invocation)
        self._timers.pop(invocation.request_id).cancel()
        milliseconds = (time.monotonic() - invocation.started) * 1000
        self._on_line(f"END RequestId: {invocation.request_id}")
        self._on_line(
            f"REPORT RequestId: {invocation.request_id} Duration: {milliseconds:.2f} ms "
            f"Billed Duration: {math.ceil(milliseconds)} ms"
        )
        if not self.invocations and self.state is State.BUSY:
            self.state = State.IDLE
            self._resting.set()
            if self.retired and not self.reserved:
                self.kill()

    async def _follow(self, launched: Launched) -> None:
        """Wait until the process ends, then fail what waits for it."""
        self._ended(await launched.ended)
        await self._api.close()

    def _ended(self, code: int) -> None:
        name = signal.strsignal(-code) if code < 0 else None
        cause = f"signal: {(name or str(-code)).lower()}" if code < 0 else f"exit status {code}"
        request = f"RequestId: {self.invocations[0].request_id} " if self.invocations else ""
        message = f"{request}Error: Runtime exited with error: {cause}"
        failure = self._killed_because or FunctionFailed.platform("Runtime.ExitError", message)
        # The end of an idle process is not logged, as on Lambda.
        has_work = self.invocations or self.state is State.STARTING
        if has_work and not self._killed_because and not self._closing:
            self._on_line(message)
        self.state = State.ENDED
        self._fail_start(failure)
        for invocation in list(self.invocations):
            invocation.fail(failure)
            self._end_invocation(invocation)
        self._resting.set()
        self._on_end(self)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self.pid and self.state is not State.ENDED:
                os.killpg(self.pid, number)
