"""A cold start: a new process that runs the function's initialisation."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from local.emulator.invocation import FunctionFailed
from local.emulator.sandbox import Sandbox
from local.leash import leashed
from local.processes import ServiceError

READ_SIZE = 65536


@dataclass(frozen=True)
class Launched:
    """A process that was started. `ended` becomes its exit code, negative for a signal."""

    pid: int
    ended: asyncio.Future[int]


class Launcher(Protocol):
    """Starts the processes of a function."""

    async def launch(self, runtime_api: str) -> Launched:
        """Start a process that gets its work from this Runtime API. Raises FunctionFailed if that is impossible."""

    async def close(self) -> None:
        """End what is kept for further starts."""


NewLauncher = Callable[[Sandbox, Mapping[str, str], Callable[[str], None]], Launcher]
"""Creates the launcher of a function, from its sandbox, the variables and a callback for printed lines."""


class ColdStart:
    """Starts every process from scratch."""

    def __init__(self, sandbox: Sandbox, variables: Mapping[str, str], on_line: Callable[[str], None]) -> None:
        """Prepare; `launch` starts a process."""
        self._sandbox = sandbox
        self._variables = variables
        self._on_line = on_line

    async def launch(self, runtime_api: str) -> Launched:
        """Start a process."""
        return await start_process(
            self._sandbox, self._sandbox.environment(runtime_api, self._variables), self._on_line
        )

    async def close(self) -> None:
        """Nothing is kept."""


async def start_process(sandbox: Sandbox, environment: Mapping[str, str], on_line: Callable[[str], None]) -> Launched:
    """Start the function in a process whose lines go to `on_line`."""
    try:
        command = await asyncio.to_thread(sandbox.command)
    except ServiceError as error:
        on_line(str(error))
        raise FunctionFailed.platform("Sandbox.Packages", str(error)) from error
    process = await asyncio.create_subprocess_exec(
        *leashed(command),
        cwd=sandbox.function.code,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # A new process group, so that its child processes are frozen and killed with it.
        start_new_session=True,
    )
    return Launched(process.pid, asyncio.create_task(_follow(process, on_line)))


async def _follow(process: asyncio.subprocess.Process, on_line: Callable[[str], None]) -> int:
    """Pass on the process's output until it and all its child processes have ended. Returns its exit code."""
    if process.stdout is None:
        raise ValueError("the process has no output")
    await follow_lines(process.stdout, on_line)
    return await process.wait()


async def follow_lines(output: asyncio.StreamReader, on_line: Callable[[str], None]) -> None:
    """Pass on every line, of any length."""
    rest = b""
    while data := await output.read(READ_SIZE):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            on_line(line.decode(errors="replace"))
    if rest:
        on_line(rest.decode(errors="replace"))
