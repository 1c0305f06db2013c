"""One running product for all the tests here that need nothing special."""

from collections.abc import AsyncIterator, Iterator

import pytest

from local.aws import Aws
from local.model import OfflineModel
from tests.fixtures.calls import User
from tests.fixtures.product import Product, running_product


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


@pytest.fixture
def user(product: Product) -> User:
    """A user of this test alone."""
    return product.user()
