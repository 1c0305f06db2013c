"""A short soak: while several people talk everything breaks once. `make soak` runs the long one."""

from tests.faults.house import Servers, open_house
from tests.faults.soak import FUNCTIONS, LIMITS, SETTINGS, SHORT, soak


async def test_no_turn_is_lost_doubled_stuck_or_diverging_whatever_breaks(servers: Servers) -> None:
    async with open_house(servers, SETTINGS, functions=FUNCTIONS, **LIMITS) as house:
        _, findings = await soak(house, SHORT, print)
    assert not findings, str(findings)
