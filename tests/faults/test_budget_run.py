"""The small version of `make budget`."""

import pytest

from tests.faults.budget_run import run
from tests.faults.house import Servers
from tests.fixtures.workers import CLOSING_LINES


async def test_processes_and_kills_misjudge_a_budget_by_one_call_each(
    servers: Servers, pytestconfig: pytest.Config
) -> None:
    spent = await run(servers.aws, servers.model, processes=2, kills=4, budget=4_000)
    pytestconfig.stash[CLOSING_LINES].append(f"budget: {spent}")
    spent.check()
