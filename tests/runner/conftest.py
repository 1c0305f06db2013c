"""Sessions in memory, and in either store."""

from collections.abc import AsyncIterator, Callable

import pytest

from omniagent import MongoSessionManager, SessionManager
from omniagent.session.ids import new_id
from tests.fixtures.conversation import QUICK
from tests.runner.sessions import Sessions, until

SessionOf = Callable[[str], SessionManager]


@pytest.fixture
async def sessions() -> AsyncIterator[Sessions]:
    """Sessions that are free in the end."""
    sessions = Sessions()
    yield sessions
    await until(sessions.are_free)


@pytest.fixture(params=["memory", "mongodb"])
def session_of(request: pytest.FixtureRequest) -> SessionOf:
    """The sessions of one user by their names, in a store."""
    if request.param == "memory":
        return Sessions().session
    store, user = request.getfixturevalue("store"), f"user-{new_id()}"
    return lambda name: MongoSessionManager(store, user, name, settings=QUICK)
