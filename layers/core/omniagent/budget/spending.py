"""What users spend: the tokens of each day and the requests of each minute, and `Meter`, which checks them."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from omniagent.errors import BudgetExceeded, OmniAgentError, TooManyRequests
from omniagent.messages import Usage
from omniagent.settings import Budget
from omniagent.team_code import team_code

logger = logging.getLogger(__name__)

AGENT_SPENT = "You have used up your tokens for this agent for today."
COUNT_SECONDS = 1.0
"""How long a model call waits to be counted. Less than a stopped turn is given to end."""


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


@dataclass(slots=True)
class Meter:
    """Checks the budget before each model call and counts the call after it. Without a limit, it does nothing.

    Concurrent turns therefore exceed a budget by at most one call each: the one in flight when it was used up.
    An agent's own budget is `within` that of the user.
    """

    counter: SpendingCounter
    user_id: str
    budget: Budget
    on_refusal: Callable[[BudgetExceeded], None] | None = None
    within: "Meter | None" = None
    _is_counted: bool = field(default=False, init=False)
    _known: Spending | None = field(default=None, init=False)
    """The counter's last reply."""

    async def admit(self) -> None:
        """Count the request, once, and check the day's tokens. Raises `BudgetExceeded`."""
        if self.within is not None:
            await self.within.admit()
        limit = self.budget.requests_per_minute
        if limit and not self._is_counted:
            try:
                self._known = await self.counter.count_request(self.user_id, limit)
            except TooManyRequests as refusal:
                self._report(refusal)
                raise
            self._is_counted = True
        await self.before_call()

    def forget(self) -> None:
        """Ask the counter again before the next call: the message has been in line."""
        self._known = None
        if self.within is not None:
            self.within.forget()

    async def before_call(self) -> None:
        """Check the day's tokens, as the last reply has them. Raises `BudgetExceeded`."""
        if self.within is not None:
            await self.within.before_call()
        limit = self.budget.tokens_per_day
        if not limit:
            return
        if self._known is None or self._known.day != self.counter.nothing().day:
            self._known = await self.counter.read(self.user_id)
        if self._known.tokens >= limit:
            refusal = self._known.exceeded("" if self.within is None else AGENT_SPENT)
            self._report(refusal)
            raise refusal

    async def count(self, usage: Usage) -> None:
        """Add the tokens of a call that ended, also by a failure or a stop. Never raises for the counter's failure."""
        if self.within is not None:
            await self.within.count(usage)
        if self.budget.tokens_per_day and usage.total_tokens:
            await asyncio.shield(self._add(usage))

    async def _add(self, usage: Usage) -> None:
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                self._known = await self.counter.add(self.user_id, usage)
        except Exception as exc:  # a team's own counter may raise anything
            extra = {"tokens": usage.total_tokens, "cause": f"{type(exc).__name__}: {exc}"}
            logger.warning("tokens not counted", extra=extra)
            if self._known is not None:
                self._known = self._known.plus(usage)

    def _report(self, refusal: BudgetExceeded) -> None:
        logger.info("budget exceeded", extra={"code": refusal.code, "retry_after": refusal.retry_after})
        if self.on_refusal is not None:
            with suppress(OmniAgentError), team_code("hook failed", hook="on_refusal"):
                self.on_refusal(refusal)
