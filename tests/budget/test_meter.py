"""The budget of one request: what it remembers between its model calls."""

import pytest

from omniagent import Budget, Usage
from omniagent.budget.spending import Meter
from omniagent.errors import BudgetExceeded
from omniagent.testing import MemoryCounter
from tests.fixtures.conversation import Clock


async def test_a_request_that_is_admitted_again_counts_once() -> None:
    meter = Meter(MemoryCounter(), "ada", Budget(requests_per_minute=1))
    await meter.admit()
    await meter.admit()  # it could not be queued, and runs


async def test_a_turn_that_outlasts_the_day_continues_on_the_next() -> None:
    clock = Clock()
    meter = Meter(MemoryCounter(clock), "ada", Budget(tokens_per_day=100))
    await meter.before_call()
    await meter.count(Usage(100))
    with pytest.raises(BudgetExceeded):
        await meter.before_call()
    clock.pass_by(24 * 3600)
    await meter.before_call()
