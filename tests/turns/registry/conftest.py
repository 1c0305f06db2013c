"""A registry of each kind, and a session to claim."""

from collections.abc import AsyncIterator

import pytest

from omniagent.persistence.store import ConversationStore
from omniagent.session.manager import new_id
from omniagent.turns.lease import Claim, TurnRegistry
from tests.fixtures.conversation import Clock, registry_of


@pytest.fixture(params=["memory", "mongodb", "dynamodb"])
async def registry(
    request: pytest.FixtureRequest, clock: Clock, registry_store: ConversationStore | None
) -> AsyncIterator[TurnRegistry]:
    async with registry_of(request, clock, registry_store) as registry:
        yield registry


@pytest.fixture
def claim() -> Claim:
    """A claim on a session that nobody else knows."""
    return Claim(f"user:{new_id()}", "turn-1", "message-1")
