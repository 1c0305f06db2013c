"""A function's process, started as Lambda starts it."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

CORE = Path(__file__).parents[2] / "layers" / "core"
TASK = Path(__file__).parent / "task"

Start = Callable[..., AbstractAsyncContextManager[asyncio.subprocess.Process]]


def make_layer(place: Path) -> Path:
    """A folder laid out as the layer is in /opt."""
    (place / "bin").mkdir(parents=True)
    shutil.copy(CORE / "bin" / "streaming", place / "bin")
    (place / "python").mkdir()
    (place / "python" / "omniagent").symlink_to(CORE / "omniagent")
    return place


@asynccontextmanager
async def function(
    command: list[str], log: Path, *, handler: str, api: str, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `command` in the environment that Lambda gives; what it prints goes to `log`."""
    known = {
        "PATH": os.environ["PATH"],
        "_HANDLER": handler,
        "AWS_LAMBDA_RUNTIME_API": api,
        "AWS_LAMBDA_FUNCTION_NAME": "toy",
        "LAMBDA_TASK_ROOT": str(TASK),
    }
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, env=known | environment, cwd=TASK, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def through_wrapper(layer: Path) -> list[str]:
    """The command of the managed runtime where AWS_LAMBDA_EXEC_WRAPPER is set."""
    return [str(layer / "bin" / "streaming"), sys.executable, "bootstrap.py"]


def without_wrapper(handler: str) -> list[str]:
    """awslambdaric alone, as the managed runtime runs it otherwise."""
    return [sys.executable, "-m", "awslambdaric", handler]
