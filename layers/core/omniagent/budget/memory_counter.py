"""`MemoryCounter`: counts the spending of one process, for scripts, servers and tests."""

import time
from collections.abc import Callable
from dataclasses import replace

from omniagent.budget.spending import Spending, SpendingCounter
from omniagent.messages import Usage


class MemoryCounter(SpendingCounter):
    """Counts in memory what users spend today. All runners of a process share it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._day = ""
        self._spendings: dict[str, Spending] = {}

    async def add(self, user_id: str, usage: Usage) -> Spending:
        spent = await self.read(user_id)
        tokens = usage.total_tokens
        estimated = tokens if usage.estimated else 0
        return self._keep(user_id, replace(spent, tokens=spent.tokens + tokens, estimated=spent.estimated + estimated))

    async def count_request(self, user_id: str, limit: int) -> Spending:
        spent = await self.read(user_id)
        if spent.requests >= limit:
            raise spent.too_many_requests()
        return self._keep(user_id, replace(spent, requests=spent.requests + 1))

    async def read(self, user_id: str) -> Spending:
        now = self.nothing()
        if now.day != self._day:
            self._day = now.day
            self._spendings.clear()
        known = self._spendings.get(user_id, now)
        return replace(known, at=now.at, requests=known.requests if known.minute == now.minute else 0)

    def _keep(self, user_id: str, spent: Spending) -> Spending:
        self._spendings[user_id] = spent
        return spent
