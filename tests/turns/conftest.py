"""What the tests of dead processes share."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.turns.deaths import GRAVES


@pytest.fixture
async def burial() -> AsyncIterator[None]:
    """End what dead processes have left. Some of it insists on a second try."""
    before = asyncio.all_tasks()
    yield
    while left := asyncio.all_tasks() - before - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.01)
    GRAVES.clear()
