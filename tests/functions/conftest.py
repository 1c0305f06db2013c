"""One running product for all the tests here that need nothing special."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from local.aws import Aws
from local.model import OfflineModel
from tests.fixtures.calls import User
from tests.fixtures.product import Product, running_product


@pytest.fixture(scope="session")
def cloud() -> Iterator[Aws]:
    """A local AWS of these tests alone: its queue feeds no other emulator, and what failed comes again soon."""
    with Aws() as server:
        server.sqs.meta.events.register("provide-client-params.sqs.ReceiveMessage", _taken_for_a_second)
        yield server


def _taken_for_a_second(params: dict[str, Any], **_: object) -> None:
    params["VisibilityTimeout"] = 1


@pytest.fixture(scope="session")
async def product(mongod: str, cloud: Aws, model: OfflineModel) -> AsyncIterator[Product]:
    """The three functions, signed requests only. A summary is due after three turns; a user may run two at once."""
    environment = {"SUMMARY_AFTER_TURNS": "3", "MAX_RUNNING_TURNS_PER_USER": "2"}
    emulator = {"api_gateway": True}
    async with running_product(mongod, cloud, model, environment=environment, emulator=emulator) as product:
        yield product


@pytest.fixture
def user(product: Product) -> User:
    """A user of this test alone."""
    return product.user()
