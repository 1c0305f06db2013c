"""`Meter`: one user's budget during one request."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from omniagent.budget.spending import Spending, SpendingCounter
from omniagent.errors import BudgetExceeded, OmniAgentError, TooManyRequests
from omniagent.messages import Usage
from omniagent.settings import Budget
from omniagent.team_code import team_code

logger = logging.getLogger(__name__)

AGENT_SPENT = "You have used up your tokens for this agent for today."
COUNT_SECONDS = 1.0
"""How long a model call waits to be counted. Less than a stopped turn is given to end."""


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
