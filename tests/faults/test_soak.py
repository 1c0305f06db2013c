"""Short forms of `make soak`, where everything breaks once while several people talk, and of `make budget`."""

from tests.faults.budget_run import run
from tests.faults.house import Servers, open_house
from tests.faults.soak import FUNCTIONS, LIMITS, SETTINGS, SHORT, soak


async def test_no_turn_is_lost_doubled_stuck_or_diverging_whatever_breaks(servers: Servers) -> None:
    async with open_house(servers, SETTINGS, functions=FUNCTIONS, **LIMITS) as house:
        _, findings = await soak(house, SHORT, print)
    assert not findings, str(findings)


async def test_processes_and_kills_misjudge_a_budget_by_one_call_each(servers: Servers) -> None:
    (await run(servers.aws, servers.model, processes=2, kills=4, budget=4_000)).check()
