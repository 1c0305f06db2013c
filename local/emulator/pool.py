"""The processes of one function: started on demand, reused warm, never more than the limit."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from local.cloudformation import ACCOUNT, REGION
from local.emulator.environment import Environment, State
from local.emulator.invocation import FunctionFailed, Invocation
from local.emulator.launch import Launcher, NewLauncher
from local.emulator.limits import Limits
from local.emulator.sandbox import Sandbox
from local.emulator.snapshot import Snapshot
from local.template import Function

# The limit on a machine that is too busy to start anything.
START_SECONDS = 120.0
# A process that has sent its answer asks for work within moments. Waiting for it is cheaper than a cold start.
SETTLE_SECONDS = 1.0
LINES_KEPT = 10_000


class Throttled(Exception):
    """Every process that the function may have is busy."""


@dataclass(frozen=True)
class Conditions:
    """What holds for every function of an emulator, which describes each."""

    variables: Mapping[str, str]
    freeze: bool
    start_seconds: float
    limits: Limits
    launcher: NewLauncher
    on_line: Callable[[str, str], None]


class Pool:
    """Runs a function's invocations."""

    def __init__(
        self,
        sandbox: Sandbox,
        conditions: Conditions,
        *,
        limit: int,
        spare: bytes | None = None,
        variables_of: Callable[[bytes], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """Start with no process.

        With `spare`, one is kept free that has served this event, and a reader that leaves frees its own. An event for
        which `variables_of` returns more variables is served only by processes that were started with the same.
        """
        self.spare = spare
        self._starting: asyncio.Task[None] | None = None
        self._sandbox = sandbox
        self._conditions = conditions
        self._variables_of = variables_of
        self._limit = limit
        self.limits = limits = conditions.limits
        self.environments: list[Environment] = []
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        limits.check_environment(self.function)
        self.snapshot: Snapshot | None = None
        if self.function.snap_start:
            seconds = min(limits.snapshot_init_seconds, conditions.start_seconds)
            self.snapshot = Snapshot(sandbox, conditions.variables, self._line, seconds)
        self._launcher = self.snapshot or conditions.launcher(sandbox, conditions.variables, self._line)

    @property
    def function(self) -> Function:
        """The function."""
        return self._sandbox.function

    @property
    def arn(self) -> str:
        """The function's ARN."""
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.function.name}"

    async def invoke(self, payload: bytes, *, client_context: str = "") -> Invocation:
        """Give an event to a process. Raises Throttled if none is free, FunctionFailed if none starts."""
        extra = self._variables_of(payload)
        environment = await self._acquire(extra)
        self.keep_spare(extra)
        invocation = Invocation(payload, arn=self.arn, client_context=client_context)
        environment.run(invocation)
        return invocation

    async def settled(self) -> None:
        """Wait until no invocation runs."""
        while busy := [item for item in self.environments if item.state is State.BUSY]:
            await asyncio.gather(*(item.rested() for item in busy))

    def retire(self, extra: Mapping[str, str] | None = None) -> None:
        """Replace every process, or those with these more variables: an idle one now, a busy one after its work."""
        if self.snapshot is not None and extra is None:
            self.snapshot.retake()
        for environment in list(self.environments):
            if extra in (None, environment.extra):
                environment.retire()

    def keep_spare(self, extra: Mapping[str, str]) -> None:
        """Start a process for the next invocation before it comes, if none is free."""
        has_spare = any(item.serves(extra) and item.state is State.IDLE for item in self.environments)
        if self.spare is not None and not has_spare and not self._starting and len(self.environments) < self._limit:
            self._starting = asyncio.create_task(self._start_spare(extra))

    async def _start_spare(self, extra: Mapping[str, str]) -> None:
        """Start a process, and let it do what only its first invocation does."""
        try:
            environment = await self._start(extra)
            warming = Invocation(self.spare or b"{}", arn=self.arn)
            environment.run(warming)
            await (await warming.answer()).read()
            await environment.rested()
        except FunctionFailed:  # its log says why, and the next invocation tries again
            pass
        finally:
            self._starting = None

    async def close(self) -> None:
        """Kill every process."""
        if self._starting:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await asyncio.gather(*(environment.close() for environment in list(self.environments)))
        await self._launcher.close()

    async def _acquire(self, extra: Mapping[str, str]) -> Environment:
        """Return an idle process, reserved for the caller."""
        for environment in self.environments:
            if environment.has_room and environment.serves(extra):
                environment.reserved = True
                return environment
        for environment in list(self.environments):
            if environment.finishing and environment.serves(extra) and await self._rests(environment):
                return environment
        if self._starting:
            await self._first_free(self._starting, extra)
            return await self._acquire(extra)
        if len(self.environments) >= self._limit:
            raise Throttled(f"{self.function.name} has {self._limit} processes, all busy")
        return await self._start(extra)

    async def _first_free(self, starting: asyncio.Task[None], extra: Mapping[str, str]) -> None:
        """Wait for a spare process that is starting, or for one that becomes free before: its reader has left."""
        resting = [asyncio.create_task(each.rested()) for each in self.environments if each.serves(extra)]
        await asyncio.wait([starting, *resting], return_when=asyncio.FIRST_COMPLETED)
        for task in resting:
            task.cancel()

    async def _rests(self, environment: Environment) -> bool:
        """Reserve a process that is about to be free. Returns whether it became free in time."""
        environment.reserved = True
        rests = False
        try:
            await asyncio.wait_for(environment.rested(), SETTLE_SECONDS)
            rests = environment.state is State.IDLE
        except TimeoutError:
            pass
        finally:
            environment.reserved = rests
        return rests

    async def _start(self, extra: Mapping[str, str]) -> Environment:
        """Start a process. If it is not ready in time, start another with the function's timeout, as Lambda does."""
        try:
            return await self._started(self.limits.init_seconds, extra)
        except FunctionFailed as failure:
            if failure.error_type != "Sandbox.Timedout" or self.snapshot is not None:
                raise
            self._line(
                f"INIT_REPORT Init Duration: {self.limits.init_seconds * 1000:.2f} ms Phase: init Status: timeout"
            )
        return await self._started(self.function.timeout, extra)

    def _launcher_with(self, extra: Mapping[str, str]) -> Launcher:
        if not extra:
            return self._launcher
        # A snapshot has the function's own variables.
        sandbox = replace(self._sandbox, function=self.function.having(snap_start=False))
        return self._conditions.launcher(sandbox, {**self._conditions.variables, **extra}, self._line)

    async def _started(self, seconds: float, extra: Mapping[str, str]) -> Environment:
        environment = Environment(
            self._launcher_with(extra),
            extra=extra,
            timeout=self.function.timeout,
            most=self.function.requests_at_once,
            version=self._sandbox.version,
            limits=self.limits,
            freeze=self._conditions.freeze,
            on_line=self._line,
            on_end=self._remove,
        )
        environment.reserved = True
        self.environments.append(environment)
        try:
            await environment.start(seconds, self._conditions.start_seconds)
        except BaseException:
            await environment.close()
            self._remove(environment)
            raise
        return environment

    def _line(self, line: str) -> None:
        self.lines.append(line)
        self._conditions.on_line(self.function.short_name, line)

    def _remove(self, environment: Environment) -> None:
        if environment in self.environments:
            self.environments.remove(environment)
