"""Sessions of every manager."""

from typing import Any

import pytest

from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.session.ids import new_id
from omniagent.session.in_memory import InMemorySessionManager, InMemoryStore
from omniagent.session.manager import SessionManager
from tests.session.sessions import SMALL, Open


@pytest.fixture(params=["memory", "mongodb"])
def open_session(request: pytest.FixtureRequest) -> Open:
    """Opens sessions of a user of the test's own: `open_session("a")`."""
    user = f"user:{new_id()}"
    memory = InMemoryStore()
    store = request.getfixturevalue("store") if request.param == "mongodb" else None

    def open_one(session_id: str = "chat", **options: Any) -> SessionManager:
        if store is not None:
            return MongoSessionManager(store, user, session_id, **options)
        return InMemorySessionManager(user, session_id, store=memory, **options)

    return open_one


@pytest.fixture
def session(open_session: Open) -> SessionManager:
    return open_session(settings=SMALL)
