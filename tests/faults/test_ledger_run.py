"""The small version of `make ledger`: one budget spent by two processes at once, and a ledger that outlives kills."""

import pytest

from omniagent.turns.ledger import RESERVE_TOKENS
from tests.faults.house import Servers, open_house
from tests.faults.ledger_run import FUNCTIONS, SETTINGS, balance, burst
from tests.faults.truth import Tally
from tests.fixtures.workers import CLOSING_LINES


async def test_turns_at_once_over_several_processes_exceed_a_budget_by_no_more_than_was_reserved(
    servers: Servers, pytestconfig: pytest.Config
) -> None:
    shown = await burst(servers.aws, servers.model, processes=2, turns=40, budget=5 * RESERVE_TOKENS)
    pytestconfig.stash[CLOSING_LINES].append(f"budget: {shown}")
    shown.check()


async def test_after_kills_the_ledger_equals_what_the_model_counted(
    servers: Servers, tally: Tally, pytestconfig: pytest.Config
) -> None:
    async with open_house(servers, tally, SETTINGS, functions=FUNCTIONS) as house:
        await house.warm_up()
        shown = await balance(house, users=3, turns=9, kills=5)
    pytestconfig.stash[CLOSING_LINES].append(f"ledger: {shown}")
    shown.check()
