"""The watch and the run function, with a clock for the leases."""

from collections.abc import Iterator

import pytest

from local.model import OfflineModel
from omniagent.turns.memory_registry import MemoryRegistry
from tests.fixtures.conversation import Clock
from tests.fixtures.functions import load
from tests.fixtures.jobs import RecordedRuns, RecordedWatches
from tests.fixtures.world import World, open_world
from tests.functions.run.dead_turns import LEASE_SECONDS, Functions, Json


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel) -> Iterator[World]:
    queues: Json = {f"{name}_queue_url": f"https://sqs.eu-west-1.amazonaws.com/1/{name}" for name in ("run", "watch")}
    with open_world(mongod, model.base_url, lease_seconds=LEASE_SECONDS, **queues) as world:
        yield world


@pytest.fixture
def clock(world: World) -> Clock:
    """The clock of the leases."""
    clock = Clock()
    world.application.__dict__["registry"] = MemoryRegistry(lease_seconds=LEASE_SECONDS, clock=clock)
    return clock


@pytest.fixture
def functions(world: World, clock: Clock) -> Functions:
    world.application.platform.watch_queue = watches = RecordedWatches()
    world.application.platform.run_queue = runs = RecordedRuns()
    return Functions(load("watch", world.application), load("run", world.application), watches, runs)
