"""`SpendingCounter`: the tokens of each user and day, and the requests of each user and minute."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
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

    def too_many_requests(self) -> TooManyRequests:
        """Return the refusal until the next minute."""
        reset = self.next_minute
        return TooManyRequests(retry_after=(reset - self.at).total_seconds(), reset_at=reset)

    def exceeded(self, detail: str = "") -> BudgetExceeded:
        """Return the refusal until the next day."""
        reset = self.next_day
        return BudgetExceeded(detail, retry_after=(reset - self.at).total_seconds(), reset_at=reset)


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
