"""Lambda on a laptop: Function URLs, the Invoke API and queues, in front of function processes."""

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from local.emulator.environment import State
from local.emulator.function_url import ApiFront, Front
from local.emulator.identity import IdentityOf, user_named_by_key
from local.emulator.invocation import FunctionFailed
from local.emulator.invoke_api import InvokeApi
from local.emulator.launch import ColdStart, NewLauncher
from local.emulator.limits import Limits
from local.emulator.pool import START_SECONDS, Conditions, Pool
from local.emulator.queue_poller import QueuePoller
from local.emulator.sandbox import Sandbox
from local.emulator.schedule import invoke_regularly
from local.emulator.snapshot import Snapshot
from local.template import Function

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

log = logging.getLogger(__name__)

CONCURRENCY = 20
# Lambda's pauses before it retries a failed asynchronous invocation.
RETRY_DELAYS = (60.0, 120.0)


@dataclass(frozen=True)
class Process:
    """A process of a function; `request_id` and `event` are those of the first invocation that it runs."""

    function: str
    pid: int
    state: State
    request_id: str | None
    event: bytes = b""


@dataclass(frozen=True)
class Result:
    """The result of an invocation. `error_type` is set if it failed."""

    payload: bytes
    error_type: str | None = None


def log_line(function: str, line: str) -> None:
    """Log a line that a function printed."""
    log.info("%s | %s", function, line)


class Emulator:
    """Runs functions as Lambda does. Use it as an async context manager, in one event loop.

    `environment` is added to every function's own. `built` says that the functions come from `sam build`. `sqs` is the
    client of the functions' queues; without it, none is read. A failed message is redelivered after the queue's
    visibility timeout, as on Lambda, or after `redelivery_seconds`. Schedules have their rate, or `schedule_seconds`.
    `freeze` stops a process between invocations. A process that does not ask for work within `start_seconds` is killed,
    however busy the machine is. `limits` are Lambda's own; a test may lower them. `launcher` starts processes in
    another way. Of the functions in `spare`, a process is kept free that has served the event named there, and one
    whose reader left is told so, unlike on Lambda. An event for which `variables_of` returns more variables, by the
    function's short name, is served only by processes that were started with the same. With `api_gateway`, the
    functions that have a URL are also behind a REST API.
    """

    def __init__(
        self,
        functions: Iterable[Function],
        *,
        environment: Mapping[str, str] | None = None,
        built: bool = False,
        freeze: bool = False,
        api_gateway: bool = False,
        concurrency: int = CONCURRENCY,
        ports: Mapping[str, int] | None = None,
        sqs: "SQSClient | None" = None,
        redelivery_seconds: int | None = None,
        schedule_seconds: float | None = None,
        identity_of: IdentityOf = user_named_by_key,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        start_seconds: float = START_SECONDS,
        limits: Limits = Limits(),
        launcher: NewLauncher = ColdStart,
        spare: Mapping[str, bytes] | None = None,
        variables_of: Callable[[str, bytes], Mapping[str, str]] = lambda _function, _event: {},
        on_line: Callable[[str, str], None] = log_line,
    ) -> None:
        """Set what to run; nothing is started yet. `ports` are by a function's short name."""
        self._functions = list(functions)
        self._conditions = Conditions(environment or {}, freeze, start_seconds, limits, launcher, on_line)
        self._built = built
        self._api_gateway = api_gateway
        self._concurrency = concurrency
        self._ports = ports or {}
        self._sqs = sqs
        self._redelivery_seconds = redelivery_seconds
        self._schedule_seconds = schedule_seconds
        self._identity_of = identity_of
        self._retry_delays = retry_delays
        self._spare = spare or {}
        self._variables_of = variables_of
        self._stack = AsyncExitStack()
        self._pools: dict[str, Pool] = {}
        self._fronts: dict[str, Front] = {}
        self._api_fronts: dict[str, Front] = {}
        self._api: InvokeApi | None = None

    async def __aenter__(self) -> Self:
        """Open the addresses. Processes start when they are needed."""
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lambda-")))
            for function in self._functions:
                await self._open(function, folder, stack)
            self._api = InvokeApi(self._names(), retry_delays=self._retry_delays)
            stack.push_async_callback(self._api.close)
            await self._api.start(0)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the addresses and kill every process."""
        await self._stack.aclose()

    @property
    def endpoint(self) -> str:
        """The address of the Invoke API."""
        if self._api is None:
            raise RuntimeError("the emulator does not run")
        return self._api.endpoint

    def url_of(self, function: str) -> str:
        """Return the address of a function's URL, without a trailing slash."""
        return self._fronts[self._pool(function).function.logical_id].url

    def api_url_of(self, function: str) -> str:
        """Return the address of a function behind API Gateway, without a trailing slash."""
        return self._api_fronts[self._pool(function).function.logical_id].url

    async def invoke(self, function: str, payload: bytes) -> Result:
        """Invoke a function and wait for its complete answer."""
        try:
            invocation = await self._pool(function).invoke(payload)
            return Result(await (await invocation.answer()).read())
        except FunctionFailed as failure:
            return Result(failure.body, failure.error_type)

    def processes(self, function: str | None = None) -> list[Process]:
        """Return the existing processes of one function, or of all."""
        pools = [self._pool(function)] if function else self._pools.values()
        return [
            Process(
                function=pool.function.short_name,
                pid=environment.pid,
                state=environment.state,
                request_id=environment.invocations[0].request_id if environment.invocations else None,
                event=environment.invocations[0].payload if environment.invocations else b"",
            )
            for pool in pools
            for environment in pool.environments
        ]

    def running(self, function: str | None = None) -> list[Process]:
        """Return the processes that run an invocation now."""
        return [process for process in self.processes(function) if process.request_id]

    def kill(self, pid: int) -> None:
        """Kill one of the emulator's processes, as a crash would."""
        if pid not in {process.pid for process in self.processes()}:
            raise ValueError(f"{pid} is no process of a function")
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(pid, signal.SIGKILL)

    def logs(self, function: str) -> list[str]:
        """Return the lines that a function's processes printed, and the platform's lines about them."""
        return list(self._pool(function).lines)

    def snapshot(self, function: str) -> Snapshot:
        """Return the snapshot that a function with SnapStart is restored from."""
        snapshot = self._pool(function).snapshot
        if snapshot is None:
            raise ValueError(f"{function} has no SnapStart")
        return snapshot

    def pause(self, pid: int, seconds: float) -> None:
        """Stop one of the emulator's processes for a while, in the middle of its work."""
        next(item for pool in self._pools.values() for item in pool.environments if item.pid == pid).pause(seconds)

    def retire(self, extra: Mapping[str, str] | None = None) -> None:
        """Replace every process, and every snapshot, by one of the current source; or those with these variables."""
        for pool in self._pools.values():
            pool.retire(extra)

    def warm(self, extra: Mapping[str, str]) -> None:
        """Start a spare process with these more variables of each function that keeps one, if none is free."""
        for pool in self._pools.values():
            pool.keep_spare(extra)

    async def settled(self) -> None:
        """Wait until no invocation runs."""
        await asyncio.gather(*(pool.settled() for pool in self._pools.values()))

    async def _open(self, function: Function, folder: Path, stack: AsyncExitStack) -> None:
        pool = Pool(
            Sandbox.prepare(function, folder / function.logical_id, built=self._built),
            self._conditions,
            limit=function.concurrency or self._concurrency,
            spare=self._spare.get(function.short_name),
            variables_of=partial(self._variables_of, function.short_name),
        )
        self._pools[function.logical_id] = pool
        stack.push_async_callback(pool.close)
        if function.url:
            front = self._fronts[function.logical_id] = Front(pool, function.url, self._identity_of)
            stack.push_async_callback(front.close)
            await front.start(self._ports.get(function.short_name, 0))
        if function.url and self._api_gateway:
            api_front = self._api_fronts[function.logical_id] = ApiFront(pool, function.url, self._identity_of)
            stack.push_async_callback(api_front.close)
            await api_front.start(0)
        if self._sqs:
            for source in function.queues:
                poller = QueuePoller(pool, source, self._sqs, self._redelivery_seconds)
                polling = asyncio.create_task(poller.run())
                stack.push_async_callback(_cancel, polling)
        for schedule in function.schedules:
            invoking = asyncio.create_task(invoke_regularly(pool, schedule, self._schedule_seconds))
            stack.push_async_callback(_cancel, invoking)

    def _names(self) -> dict[str, Pool]:
        return {
            name: pool
            for pool in self._pools.values()
            for name in (pool.function.logical_id, pool.function.name, pool.function.short_name)
        }

    def _pool(self, function: str) -> Pool:
        return self._names()[function]


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
