"""The offline model, and the official SDK that asks it."""

from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI

from local.model import OfflineModel
from tests.local.model_client import APIS, Asker, connect


@pytest.fixture(scope="module")
def model() -> Iterator[OfflineModel]:
    """A model that no other module asks."""
    with OfflineModel() as model:
        yield model


@pytest.fixture
async def client(model: OfflineModel) -> AsyncIterator[AsyncOpenAI]:
    async with connect(model) as client:
        yield client


@pytest.fixture(params=[(api, stream) for api in APIS for stream in (True, False)], ids=lambda p: f"{p[0]}-{p[1]}")
def asker(request: pytest.FixtureRequest, client: AsyncOpenAI) -> Asker:
    api, stream = request.param
    return Asker(client, api, stream=stream)


@pytest.fixture(params=[("responses", True), ("chat", False)], ids=lambda p: f"{p[0]}-{p[1]}")
def either(request: pytest.FixtureRequest, client: AsyncOpenAI) -> Asker:
    """Each API once, for what is read from a request: how the answer is written has tests of its own."""
    api, stream = request.param
    return Asker(client, api, stream=stream)
