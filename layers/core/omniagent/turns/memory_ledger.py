"""`MemoryLedger`: the ledger of a single process, for scripts, servers and tests."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

from omniagent.settings import Budget
from omniagent.turns.ledger import Cost, Ledger, Moment, Reservation, Spending


@dataclass(slots=True)
class _Page:
    requests: Counter[int] = field(default_factory=Counter)
    spent: Cost = Cost()
    open: dict[str, Reservation] = field(default_factory=dict)
    known: dict[str, Cost] = field(default_factory=dict)
    """What a repair has settled of a reservation, and what was charged, by id."""


class MemoryLedger(Ledger):
    """An in-memory ledger, shared by all runners of a process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._pages: dict[tuple[str, str], _Page] = {}

    async def extend(self, held: Reservation, budget: Budget, tokens: int) -> Reservation:
        page = self._open_page(held.user_id, held.day)
        refusal = _spending(page, self.now()).refusal(Budget(tokens_per_day=budget.tokens_per_day))
        if refusal is not None:
            raise refusal
        more = replace(held, tokens=held.tokens + tokens, minute=self.now().minute)
        if page.known.get(held.id) == Cost():  # released as stale
            del page.known[held.id]
            page.open[held.id] = more
        elif held.id in page.open:
            page.open[held.id] = more
        return more

    async def give_back(self, held: Reservation) -> None:
        page = self._open_page(held.user_id, held.day)
        if held.tokens and page.open.pop(held.id, None) is None:
            return
        page.requests[held.minute] -= held.is_counted

    async def charge(self, user_id: str, charge_id: str, cost: Cost) -> None:
        page = self._open_page(user_id, self.now().day)
        if charge_id not in page.known:
            page.known[charge_id] = cost
            page.spent += cost

    async def forget(self, user_id: str) -> None:
        today = self.now().day
        for key in [key for key in self._pages if key[0] == user_id and key[1] != today]:
            del self._pages[key]

    async def _reserve(self, held: Reservation, budget: Budget, moment: Moment) -> tuple[Spending, bool]:
        page = self._open_page(held.user_id, held.day)
        spending = _spending(page, moment)
        if spending.refusal(budget) is not None:
            return spending, True
        page.requests[moment.minute] += held.is_counted
        if held.tokens:
            page.open[held.id] = held
        return spending, False

    async def _settle(self, held: Reservation, cost: Cost, *, by_owner: bool) -> None:
        page = self._open_page(held.user_id, held.day)
        if page.open.pop(held.id, None) is not None:
            page.spent += cost
            if not by_owner:
                page.known[held.id] = cost
        elif held.id in page.known:
            page.spent += cost - page.known.pop(held.id)
            if not by_owner:
                page.known[held.id] = cost

    async def _page(self, user_id: str, day: str, moment: Moment) -> Spending:
        page = self._open_page(user_id, day)
        released = tuple(Reservation(user_id, day, known, 0, moment.minute) for known in page.known)
        return replace(_spending(page, moment), released=released)

    def _open_page(self, user_id: str, day: str) -> _Page:
        if (user_id, day) not in self._pages:
            moment = self.now()
            for key in [key for key in self._pages if key[1] not in (moment.day, moment.yesterday)]:
                del self._pages[key]
        return self._pages.setdefault((user_id, day), _Page())


@cache
def process_ledger() -> Ledger:
    """Return the one ledger of this process."""
    return MemoryLedger()


def _spending(page: _Page, moment: Moment) -> Spending:
    return Spending(
        moment,
        requests=page.requests[moment.minute],
        spent=page.spent,
        reserved=sum(held.tokens for held in page.open.values()),
        open=tuple(page.open.values()),
    )
