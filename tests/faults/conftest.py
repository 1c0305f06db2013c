"""One set of servers, one house, one tally for the whole suite."""

from collections.abc import AsyncIterator

import pytest

from tests.faults.house import House, Servers, open_house, open_servers
from tests.faults.truth import Tally

_TALLY = pytest.StashKey[Tally]()


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    return pytestconfig.stash.setdefault(_TALLY, Tally())


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    tally = config.stash.get(_TALLY, None)
    if tally is not None and tally.turns:
        terminalreporter.section("faults")
        terminalreporter.write_line(str(tally))
