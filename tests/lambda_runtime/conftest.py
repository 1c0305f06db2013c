"""A function's process before a Runtime API of the test's own."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fixtures.meetings import Meeting, meeting
from tests.lambda_runtime.processes import Start, function, make_layer, through_wrapper
from tests.lambda_runtime.runtime_api import RuntimeApi, runtime_api


@pytest_asyncio.fixture
async def bare_api() -> AsyncIterator[RuntimeApi]:
    """A Runtime API before which no process runs yet."""
    async with runtime_api() as running:
        yield running


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Meeting]:
    async with meeting() as place:
        yield place


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    return make_layer(tmp_path / "opt")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def logged(log: Path) -> Callable[[], str]:
    return log.read_text


@pytest.fixture
def start(layer: Path, log: Path, bare_api: RuntimeApi, stage: Meeting) -> Start:
    """Start a function's process through the wrapper."""
    command = through_wrapper(layer)
    return partial(function, command, log, handler="app.handler", api=bare_api.address, MEETING=stage.address)


@pytest_asyncio.fixture
async def api(start: Start, bare_api: RuntimeApi) -> AsyncIterator[RuntimeApi]:
    """The Runtime API of a process that runs `task/app.py`."""
    async with start():
        yield bare_api
