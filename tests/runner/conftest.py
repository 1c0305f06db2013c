"""Sessions in memory for the tests of what meets a running turn."""

from collections.abc import AsyncIterator

import pytest

from tests.runner.sessions import Busily, until


@pytest.fixture
async def sessions() -> AsyncIterator[Busily]:
    """Sessions that are free in the end."""
    sessions = Busily()
    yield sessions
    await until(sessions.are_free)
