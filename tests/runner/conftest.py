"""Sessions in memory."""

from collections.abc import AsyncIterator

import pytest

from tests.runner.sessions import Sessions, until


@pytest.fixture
async def sessions() -> AsyncIterator[Sessions]:
    """Sessions that are free in the end."""
    sessions = Sessions()
    yield sessions
    await until(sessions.are_free)
