"""Budgets: requests per minute and tokens per day, reserved before a model call and settled after it.

A ledger keeps one page per user and day. A reservation is stored under its turn's id, so it is settled exactly once,
by the turn or by its repair. A user is admitted while any budget is left, and a turn reserves more before it spends
more: a budget is exceeded by the last reservation at most.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from omniagent.errors import BudgetExceeded, OmniAgentError, RegistryUnavailable, TooManyRequests
from omniagent.messages import Usage
from omniagent.protocol import sse
from omniagent.settings import Budget
from omniagent.team_code import team_code
from omniagent.turns.replay import ASKED, BESIDE, COUNTED

logger = logging.getLogger(__name__)

RESERVE_TOKENS = 40_000
"""Tokens that a turn reserves before it calls the model, and again when it outgrows its reservation."""
STALE_MINUTES = 20
"""Longer than any Lambda invocation: the process of an older reservation is dead."""
JOB = "job"
"""Prefix of the reservation of a name or a summary. No turn's id has it."""
SETTLE_SECONDS = 2.0
MAX_UNSETTLED = 100
BUSY_RETRY_SECONDS = 2.0
"""When to retry while running turns have reserved the rest."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: the day and the minute of that day, in UTC."""

    at: datetime

    @classmethod
    def of(cls, seconds: float) -> "Moment":
        return cls(datetime.fromtimestamp(seconds, UTC))

    @property
    def day(self) -> str:
        return self.at.strftime("%Y-%m-%d")

    @property
    def yesterday(self) -> str:
        return (self.at - timedelta(days=1)).strftime("%Y-%m-%d")

    @property
    def minute(self) -> int:
        return self.at.hour * 60 + self.at.minute

    @property
    def next_minute(self) -> datetime:
        return self.at.replace(second=0, microsecond=0) + timedelta(minutes=1)

    @property
    def next_day(self) -> datetime:
        return self.at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens spent, and how many of them are estimated because the provider did not report the call."""

    tokens: int = 0
    estimated: int = 0

    @classmethod
    def of(cls, usage: Usage) -> "Cost":
        return cls(usage.total_tokens, usage.total_tokens if usage.estimated else 0)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.tokens + other.tokens, self.estimated + other.estimated)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.tokens - other.tokens, self.estimated - other.estimated)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Tokens reserved on a user's page, under the unique id of a turn."""

    user_id: str
    day: str
    id: str
    tokens: int
    minute: int
    is_counted: bool = False
    """Whether it counts as a request of its minute."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What a user has spent today."""

    moment: Moment
    requests: int = 0
    """Of this minute."""
    spent: Cost = Cost()
    reserved: int = 0
    open: tuple[Reservation, ...] = ()
    released: tuple[Reservation, ...] = ()
    """Settled by a repair, not by their owners."""

    def refusal(self, budget: Budget) -> BudgetExceeded | None:
        """Return why the budget refuses, if it does."""
        if budget.requests_per_minute and self.requests >= budget.requests_per_minute:
            reset = self.moment.next_minute
            return TooManyRequests(retry_after=self._seconds_until(reset), reset_at=reset)
        if not budget.tokens_per_day or self.spent.tokens + self.reserved < budget.tokens_per_day:
            return None
        reset = self.moment.next_day
        if self.spent.tokens >= budget.tokens_per_day:
            return BudgetExceeded(retry_after=self._seconds_until(reset), reset_at=reset)
        return BudgetExceeded(
            "The rest of your tokens for today is reserved by running answers.",
            retry_after=BUSY_RETRY_SECONDS,
            reset_at=reset,
        )

    @property
    def stale(self) -> list[Reservation]:
        """The reservations of dead processes."""
        return [held for held in self.open if self.moment.minute - held.minute > STALE_MINUTES]

    def _seconds_until(self, moment: datetime) -> float:
        return (moment - self.moment.at).total_seconds()


class Ledger(ABC):
    """The spending of all users. Every method raises `RegistryUnavailable` if the store cannot be reached."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._unsettled: dict[TurnBudget, Callable[[], Awaitable[None]]] = {}

    def repeat_later(self, budget: "TurnBudget", settling: Callable[[], Awaitable[None]]) -> None:
        """Keep a failed settlement. The next reservation of this process, of any user, repeats it."""
        if len(self._unsettled) < MAX_UNSETTLED:
            self._unsettled[budget] = settling

    async def reserve(
        self, user_id: str, reservation_id: str, budget: Budget, tokens: int, *, is_request: bool = True
    ) -> Reservation:
        """Count a request and reserve tokens, if any budget is left. Raises `BudgetExceeded`.

        With no tokens there is nothing to settle. Reservations of dead processes are released on the way.
        """
        if self._unsettled:
            late, self._unsettled = self._unsettled, {}
            await asyncio.gather(*(settling() for settling in late.values()))
        moment = self.now()
        is_counted = is_request and bool(budget.requests_per_minute)
        limits = budget if is_counted else replace(budget, requests_per_minute=0)
        held = Reservation(user_id, moment.day, reservation_id, tokens, moment.minute, is_counted)
        page, is_refused = await self._requested(held, limits, moment)
        if page.stale:
            tokens = sum(stale.tokens for stale in page.stale)
            logger.warning("stale reservations released", extra={"count": len(page.stale), "tokens": tokens})
            for stale in page.stale:
                await self._settle(stale, Cost(), by_owner=False)
            if is_refused:
                page, is_refused = await self._requested(held, limits, moment)
        if is_refused and (refusal := page.refusal(limits)) is not None:
            raise refusal
        return held

    async def settle(self, held: Reservation, cost: Cost) -> None:
        """Replace a reservation with the tokens spent. Idempotent.

        If a repair has settled it meanwhile, only what the repair did not know is added.
        """
        await self._settle(held, cost, by_owner=True)

    async def settle_dead(self, user_id: str, reservation_id: str, calls: Iterable[Usage]) -> None:
        """Settle a dead process's reservation of today or yesterday.

        If a repair that knew less has settled it, the difference is added. Does nothing if the owner has settled it.
        """
        moment, cost = self.now(), sum(map(Cost.of, calls), Cost())
        for day in (moment.day, moment.yesterday):
            page = await self._page(user_id, day, moment)
            for held in (*page.open, *page.released):
                if held.id == reservation_key(reservation_id):
                    await self._settle(held, cost, by_owner=False)
                    return

    async def spending(self, user_id: str) -> Spending:
        """Read a user's page of today."""
        moment = self.now()
        return await self._page(user_id, moment.day, moment)

    def now(self) -> Moment:
        return Moment.of(self._clock())

    @abstractmethod
    async def extend(self, held: Reservation, budget: Budget, tokens: int) -> Reservation:
        """Reserve more tokens, if any budget is left, and again those that were released as stale: the process lives.

        Raises `BudgetExceeded`.
        """

    @abstractmethod
    async def give_back(self, held: Reservation) -> None:
        """Undo a reservation: the model was not called."""

    @abstractmethod
    async def charge(self, user_id: str, charge_id: str, cost: Cost) -> None:
        """Add tokens spent without a reservation. Idempotent by id."""

    @abstractmethod
    async def forget(self, user_id: str) -> None:
        """Delete a user's pages except today's, which expires: deleting an account must not refill its budget."""

    async def aclose(self) -> None:  # noqa: B027 - a ledger without connections has nothing to close
        """Close the ledger's connections."""

    async def _requested(self, held: Reservation, budget: Budget, moment: Moment) -> tuple[Spending, bool]:
        """Like `_reserve`. A failed request may still have been granted, so its tokens are then given back."""
        try:
            return await self._reserve(held, budget, moment)
        except RegistryUnavailable:
            if held.tokens:  # otherwise nothing shows whether it was granted
                with suppress(RegistryUnavailable, TimeoutError):
                    async with asyncio.timeout(SETTLE_SECONDS):
                        await self.give_back(held)
            raise

    @abstractmethod
    async def _reserve(self, held: Reservation, budget: Budget, moment: Moment) -> tuple[Spending, bool]:
        """Reserve in one atomic write. Returns the page, and whether it refused."""

    @abstractmethod
    async def _settle(self, held: Reservation, cost: Cost, *, by_owner: bool) -> None:
        """Settle in one atomic write. A settler that is not the owner records what it knew, so that a later one can
        add the difference.
        """

    @abstractmethod
    async def _page(self, user_id: str, day: str, moment: Moment) -> Spending:
        """Read one page."""


def reservation_key(reservation_id: str) -> str:
    """Return a reservation's short key. A page must fit into one write unit (1 KB)."""
    return reservation_id[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One user's view of the ledger, with the user's budget."""

    ledger: Ledger
    user_id: str
    budget: Budget
    reserve_tokens: int = RESERVE_TOKENS
    on_refusal: Callable[[BudgetExceeded], None] | None = None

    def open(self, reservation_id: str, *, is_request: bool = True) -> "TurnBudget":
        """Start to reserve for one turn."""
        tokens = min(self.reserve_tokens, self.budget.tokens_per_day)
        return TurnBudget(self, reservation_id, tokens, is_request=is_request)

    def open_job(self, job_id: str, *, is_request: bool = True) -> "TurnBudget":
        """Start to reserve for a name or a summary."""
        return self.open(f"{JOB}{job_id}", is_request=is_request)

    async def count_request(self, request_id: str) -> None:
        """Count a request whose model calls are made later. Raises `BudgetExceeded`."""
        await self.request(request_id).admitted()

    def request(self, request_id: str) -> "TurnBudget":
        """Start to count a request without its tokens."""
        return TurnBudget(self, request_id, 0)


class TurnBudget:
    """What one turn or job has reserved and spent. Creating it starts the reservation, in parallel with other work."""

    def __init__(self, account: Account, reservation_id: str, tokens: int, *, is_request: bool = True) -> None:
        self._account = account
        self._spent = Cost()
        self._has_called = False
        self._settled: Cost | None = None
        self._unconfirmed: Cost | None = None
        """The cost of a settlement that failed and may have been recorded. It is repeated with the same cost."""
        self._charges = 0
        self._note: Callable[[bytes], None] = lambda _: None
        self._checkpoint: Callable[[], Awaitable[None]] | None = None
        reserving = account.ledger.reserve(
            account.user_id, reservation_key(reservation_id), account.budget, tokens, is_request=is_request
        )
        self._reserving = asyncio.create_task(reserving, name="reservation")
        self._settling = asyncio.Lock()
        self._held: Reservation | None = None

    def attach(self, note: Callable[[bytes], None], checkpoint: Callable[[], Awaitable[None]]) -> None:
        """Log each call's cost with the turn's events: a repair reads it there."""
        self._note, self._checkpoint = note, checkpoint

    async def admitted(self) -> None:
        """Wait for the reservation. Raises `BudgetExceeded`, or `RegistryUnavailable`."""
        try:
            self._held = await asyncio.shield(self._reserving)
        except BudgetExceeded as refusal:
            self._refuse(refusal)
            raise

    async def before_call(self, input_tokens: int, output_tokens: int) -> None:
        """Ensure that the reservation covers a call of about this many tokens. Raises `BudgetExceeded`.

        An admitted turn may always make its first call.
        """
        held, account = self._held, self._account
        if held is None or not held.tokens:
            return
        missing = self._spent.tokens + input_tokens + output_tokens - held.tokens
        if missing > 0 and self._has_called:
            # The page does not include yet what the last call cost beyond the reservation.
            over = max(0, self._spent.tokens - held.tokens)
            limit = Budget(tokens_per_day=max(1, account.budget.tokens_per_day - over))
            try:
                self._held = await account.ledger.extend(held, limit, max(missing, account.reserve_tokens))
            except BudgetExceeded as refusal:
                self._refuse(refusal)
                raise
        self._note(sse.encode_note({ASKED: input_tokens}))

    def counted(self, usage: Usage, *, beside: bool = False) -> None:
        """Record the cost of a model call: one of the turn's own, or one beside it."""
        self._has_called = True
        self._spent += Cost.of(usage)
        self._note(sse.encode_note({BESIDE if beside else COUNTED: usage.to_dict()}))

    async def after_call(self) -> None:
        """Record the cost of a job's call, or of a call beside a turn, before its result is stored.

        While a turn runs, its log records the cost, and a repair reads it there.
        """
        if self._settled is None and self._checkpoint is not None:
            await self._checkpoint()
        else:
            await self.settle()

    async def settle(self, seconds: float = SETTLE_SECONDS) -> None:
        """Settle the tokens spent so far. Never raises: a failure is repeated by the next call or reservation."""
        if self._held is None or not self._account.budget.tokens_per_day:
            return
        try:
            async with asyncio.timeout(max(0.0, seconds)), self._settling:
                await self._settle(self._held)
        except Exception as exc:  # a team's own ledger may raise anything
            logger.warning("budget not settled", extra={"cause": f"{type(exc).__name__}: {exc}"})
            self._account.ledger.repeat_later(self, self.settle)

    async def give_back(self) -> None:
        """Undo the reservation of a turn that does not begin, unless a call was already paid for. Never raises."""
        if self._settled is not None:
            return
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._account.ledger.give_back(await asyncio.shield(self._reserving))
            self._settled = self._spent
        except BudgetExceeded:
            pass  # nothing was reserved
        except Exception as exc:  # a team's own ledger may raise anything
            logger.warning("reservation not given back", extra={"cause": f"{type(exc).__name__}: {exc}"})
            if self._reserving.done() and self._reserving.exception() is None:
                self._account.ledger.repeat_later(self, self.give_back)

    async def close(self) -> None:
        """Settle, or undo the reservation if no call was paid for."""
        await (self.settle() if self._has_called else self.give_back())

    async def _settle(self, held: Reservation) -> None:
        ledger = self._account.ledger
        while self._spent != self._settled:
            self._unconfirmed = cost = self._unconfirmed or self._spent
            if self._settled is None:
                await ledger.settle(held, cost)
            else:
                # Tokens spent after the end of the answer, by a summary.
                await ledger.charge(held.user_id, f"{self._charges}{held.id}", cost - self._settled)
                self._charges += 1
            self._settled, self._unconfirmed = cost, None

    def _refuse(self, refusal: BudgetExceeded) -> None:
        logger.info("budget exceeded", extra={"code": refusal.code, "retry_after": refusal.retry_after})
        if self._account.on_refusal is not None:
            with suppress(OmniAgentError), team_code("hook failed", hook="on_refusal"):
                self._account.on_refusal(refusal)
