"""The run function, in a world with its queue."""

from collections.abc import Iterator

import pytest

from local.model import OfflineModel
from omniagent.turns.registry import MemoryRegistry
from tests.fixtures.functions import load
from tests.fixtures.jobs import RecordedQueue
from tests.fixtures.world import World, open_world
from tests.functions.run.dead_turns import RunFunction


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel) -> Iterator[World]:
    with open_world(mongod, model.base_url, run_queue_url="https://sqs.eu-west-1.amazonaws.com/1/run") as world:
        yield world


@pytest.fixture
def run(world: World) -> RunFunction:
    """The run function. No session of an earlier test has work for it."""
    world.database.sessions.delete_many({})
    world.database.messages.update_many({}, {"$unset": {"announced": ""}})
    world.use(MemoryRegistry())
    world.application.platform.run_queue = queue = RecordedQueue()
    return RunFunction(load("run", world.application), queue)
