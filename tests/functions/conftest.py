"""What the tests here need: one running product for all of them, or the functions in the test's process."""

from collections.abc import AsyncIterator, Iterator

import pytest

from local.aws import Aws
from local.model import OfflineModel
from tests.fixtures.calls import User
from tests.fixtures.jobs import RecordedQueue
from tests.fixtures.product import Product, running_product
from tests.fixtures.world import World, open_world


@pytest.fixture(scope="session")
def cloud() -> Iterator[Aws]:
    """A local AWS of these tests alone: its queue feeds no other emulator."""
    with Aws() as server:
        yield server


@pytest.fixture(scope="session")
async def product(mongod: str, cloud: Aws, model: OfflineModel) -> AsyncIterator[Product]:
    """All but run, signed requests only. A summary is due after three turns."""
    environment = {"CONTEXT_MAX_TURNS": "6"}
    emulator = {"api_gateway": True, "redelivery_seconds": 0}
    async with running_product(mongod, cloud, model, environment=environment, emulator=emulator) as product:
        yield product


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel) -> Iterator[World]:
    with open_world(mongod, model.base_url) as world:
        yield world


@pytest.fixture
def queue(world: World, monkeypatch: pytest.MonkeyPatch) -> RecordedQueue:
    """What the functions send to the queue of summaries."""
    queue = RecordedQueue()
    monkeypatch.setattr(world.application.platform, "summary_queue", queue)
    return queue


@pytest.fixture
def user(product: Product) -> User:
    """A user of this test alone."""
    return product.user()
