"""One set of servers, one house, one tally for the whole suite."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.faults.house import House, Servers, open_house, open_servers
from tests.faults.truth import Tally
from tests.fixtures.workers import CLOSING_LINES


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Iterator[Tally]:
    """What was counted, told when all is over."""
    tally = Tally()
    yield tally
    pytestconfig.stash[CLOSING_LINES].append(f"faults: {tally}")


@pytest.fixture(scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path_factory.mktemp("chat")) as servers:
        yield servers


@pytest.fixture(scope="session")
async def house(servers: Servers, tally: Tally) -> AsyncIterator[House]:
    """The product, with spare processes: a test that kills one need not wait for the next to start."""
    async with open_house(servers, tally) as house:
        await house.warm_up()
        yield house
