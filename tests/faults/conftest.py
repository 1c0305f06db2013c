"""One set of servers and one house for the whole suite."""

from collections.abc import AsyncIterator

import pytest

from tests.faults.house import House, Servers, open_house, open_servers


@pytest.fixture(scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path_factory.mktemp("chat")) as servers:
        yield servers


@pytest.fixture(scope="session")
async def house(servers: Servers) -> AsyncIterator[House]:
    """The product, with spare processes: a test that kills one need not wait for the next to start."""
    async with open_house(servers) as house:
        await house.warm_up()
        yield house
