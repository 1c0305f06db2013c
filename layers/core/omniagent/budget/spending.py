"""`SpendingCounter`: the tokens of each user and day, and the requests of each user and minute."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from omniagent.errors import BudgetExceeded, TooManyRequests
from omniagent.messages import Usage


@dataclass(frozen=True, slots=True)
class Spending:
    """What a user has spent at a time (UTC): the tokens of its day, and the requests of its minute."""

    at: datetime
    tokens: int = 0
    estimated: int = 0
    """The part of `tokens` that no provider reported."""
    requests: int = 0

    @property
    def day(self) -> str:
        return self.at.strftime("%Y-%m-%d")

    @property
    def minute(self) -> int:
        """The minute of the day."""
        return self.at.hour * 60 + self.at.minute

    @property
    def next_minute(self) -> datetime:
        return self.at.replace(second=0, microsecond=0) + timedelta(minutes=1)

    @property
    def next_day(self) -> datetime:
        return self.at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)

    def plus(self, usage: Usage) -> "Spending":
        tokens = usage.total_tokens
        estimated = tokens if usage.estimated else 0
        return replace(self, tokens=self.tokens + tokens, estimated=self.estimated + estimated)

    def too_many_requests(self) -> TooManyRequests:
        wait = self.next_minute - self.at
        return TooManyRequests(retry_after=wait.total_seconds(), reset_at=self.next_minute)

    def exceeded(self, detail: str = "") -> BudgetExceeded:
        wait = self.next_day - self.at
        return BudgetExceeded(detail, retry_after=wait.total_seconds(), reset_at=self.next_day)


def agent_account(user_id: str, agent: str) -> str:
    """Return the id under which a counter counts what a user spends on one agent."""
    return f"{user_id}#{agent}"


class SpendingCounter(ABC):
    """Counts what all users spend. Every method raises `RegistryUnavailable` if the store cannot be reached.

    A user's spending on an agent with its own budget is counted too, under an id that begins with the user's and `#`.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock

    def nothing(self) -> Spending:
        """Return the spending, now, of a user who has spent nothing."""
        return Spending(datetime.fromtimestamp(self._clock(), UTC))

    @abstractmethod
    async def add(self, user_id: str, usage: Usage) -> Spending:
        """Add the tokens of a model call. At most once: a write whose reply was lost is not repeated."""

    @abstractmethod
    async def count_request(self, user_id: str, limit: int) -> Spending:
        """Count a request of this minute. Raises `TooManyRequests` if there were `limit`, and counts nothing then."""

    @abstractmethod
    async def read(self, user_id: str) -> Spending:
        """Read what the user has spent."""

    async def forget(self, user_id: str) -> None:  # noqa: B027 - a counter that keeps only today has nothing to delete
        """Delete the user's counts except today's, which expire: deleting an account must not refill its budget."""

    async def aclose(self) -> None:  # noqa: B027 - a counter without connections has nothing to close
        """Close the counter's connections."""


class MemoryCounter(SpendingCounter):
    """Counts in memory what users spend today. All runners of a process share it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._spendings: dict[str, Spending] = {}

    async def add(self, user_id: str, usage: Usage) -> Spending:
        spent = (await self.read(user_id)).plus(usage)
        self._spendings[user_id] = spent
        return spent

    async def count_request(self, user_id: str, limit: int) -> Spending:
        spent = await self.read(user_id)
        if spent.requests >= limit:
            raise spent.too_many_requests()
        self._spendings[user_id] = spent = replace(spent, requests=spent.requests + 1)
        return spent

    async def read(self, user_id: str) -> Spending:
        now = self.nothing()
        if next(iter(self._spendings.values()), now).day != now.day:
            self._spendings.clear()
        known = self._spendings.get(user_id, now)
        return replace(known, at=now.at, requests=known.requests if known.minute == now.minute else 0)
