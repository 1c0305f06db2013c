"""The small version of `make budget`."""

from tests.faults.budget_run import run
from tests.faults.house import Servers


async def test_processes_and_kills_misjudge_a_budget_by_one_call_each(servers: Servers) -> None:
    (await run(servers.aws, servers.model, processes=2, kills=4, budget=4_000)).check()
