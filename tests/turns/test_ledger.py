"""One contract for every ledger: each test runs in memory and on DynamoDB."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from local.aws import Aws
from omniagent import Budget, Usage
from omniagent.aws.budget_table import DynamoLedger
from omniagent.aws.credentials import Credentials
from omniagent.aws.http_pool import AwsUnreachable
from omniagent.aws.json_api import DYNAMODB, AwsJson
from omniagent.errors import BudgetExceeded, RegistryUnavailable, TooManyRequests
from omniagent.session.manager import new_id
from omniagent.turns.ledger import STALE_MINUTES, Account, Cost, Ledger, Reservation
from omniagent.turns.memory_ledger import MemoryLedger
from tests.fixtures.conversation import Clock, dynamodb_api

NOON = 1_800_014_400.0  # 2027-01-15T12:00:00Z
TOKENS = Budget(tokens_per_day=100)
REQUESTS = Budget(requests_per_minute=2)


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture(params=["memory", "dynamodb"])
async def ledger(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Ledger]:
    if request.param == "memory":
        yield MemoryLedger(clock)
        return
    aws: Aws = request.getfixturevalue("aws")
    ledger = DynamoLedger(request.getfixturevalue("turns_table"), api=dynamodb_api(aws.endpoint), clock=clock)
    yield ledger
    await ledger.aclose()


@pytest.fixture
def user() -> str:
    return new_id()


async def refusal(ledger: Ledger, user: str, budget: Budget) -> BudgetExceeded:
    with pytest.raises(BudgetExceeded) as refused:
        await ledger.reserve(user, "late", budget, 10)
    return refused.value


async def numbers(ledger: Ledger, user: str) -> tuple[int, int, int]:
    """What was spent, how much of it is estimated, what is reserved."""
    page = await ledger.spending(user)
    return page.spent.tokens, page.spent.estimated, page.reserved


async def test_a_reservation_is_replaced_by_what_was_spent(ledger: Ledger, user: str) -> None:
    held = await ledger.reserve(user, "a", TOKENS, 40)
    assert await numbers(ledger, user) == (0, 0, 40)
    await ledger.settle(held, Cost(25, 5))
    assert await numbers(ledger, user) == (25, 5, 0)
    await ledger.settle(held, Cost(25, 5))
    assert await numbers(ledger, user) == (25, 5, 0), "a settlement that is sent again counts once"


async def test_a_user_is_admitted_while_anything_is_left(ledger: Ledger, user: str) -> None:
    first = await ledger.reserve(user, "a", TOKENS, 99)
    await ledger.reserve(user, "b", TOKENS, 40)
    reserved = await refusal(ledger, user, TOKENS)
    assert (reserved.code, reserved.retry_after) == ("budget_exceeded", 2.0)
    assert "reserved by running answers" in reserved.public
    await ledger.settle(first, Cost(100))
    spent = await refusal(ledger, user, TOKENS)
    assert spent.retry_after == 12 * 3600
    assert spent.reset_at is not None
    assert spent.reset_at.isoformat() == "2027-01-16T00:00:00+00:00"


async def test_the_next_day_has_a_page_of_its_own(ledger: Ledger, user: str, clock: Clock) -> None:
    yesterday = await ledger.reserve(user, "a", TOKENS, 100)
    await refusal(ledger, user, TOKENS)
    clock.pass_by(12 * 3600)
    await ledger.reserve(user, "b", TOKENS, 10)
    await ledger.settle(yesterday, Cost(70))
    assert await numbers(ledger, user) == (0, 0, 10)


async def test_of_many_at_once_no_more_are_admitted_than_the_budget_covers(ledger: Ledger, user: str) -> None:
    many = (ledger.reserve(user, f"t{number}", TOKENS, 10) for number in range(30))
    ended = await asyncio.gather(*many, return_exceptions=True)
    assert sum(isinstance(each, BudgetExceeded) for each in ended) == 20
    assert await numbers(ledger, user) == (0, 0, 100)


async def test_requests_are_counted_by_the_minute(ledger: Ledger, user: str, clock: Clock) -> None:
    clock.pass_by(15)
    for each in ("a", "b"):
        await ledger.reserve(user, each, REQUESTS, 0)
    refused = await refusal(ledger, user, REQUESTS)
    assert isinstance(refused, TooManyRequests)
    assert (refused.code, refused.retry_after) == ("too_many_requests", 45.0)
    await ledger.reserve(user, "job", REQUESTS, 0, is_request=False)
    assert (await ledger.spending(user)).requests == 2
    clock.pass_by(45)
    await ledger.reserve(user, "c", REQUESTS, 0)
    assert (await ledger.spending(user)).requests == 1


async def test_a_request_that_is_given_back_does_not_count(ledger: Ledger, user: str) -> None:
    both = Budget(requests_per_minute=1, tokens_per_day=100)
    held = await ledger.reserve(user, "a", both, 50)
    await ledger.give_back(held)
    await ledger.give_back(held)
    page = await ledger.spending(user)
    assert (page.requests, page.reserved) == (0, 0)
    await ledger.reserve(user, "b", both, 50)


async def test_a_turn_that_outgrows_its_reservation_reserves_more(ledger: Ledger, user: str) -> None:
    held = await ledger.reserve(user, "a", TOKENS, 60)
    more = await ledger.extend(held, TOKENS, 60)
    assert await numbers(ledger, user) == (0, 0, 120)
    with pytest.raises(BudgetExceeded):
        await ledger.extend(more, TOKENS, 1)
    await ledger.settle(more, Cost(110))
    assert await numbers(ledger, user) == (110, 0, 0)


async def test_a_repair_settles_what_a_dead_turn_had_reserved_once(ledger: Ledger, user: str) -> None:
    turn = new_id()
    held = await ledger.reserve(user, turn[:12], TOKENS, 60)
    await ledger.extend(held, TOKENS, 20)
    calls = [Usage(10, 5), Usage(7, 3, estimated=True)]
    for _ in range(2):
        await ledger.settle_dead(user, turn, calls)
        assert await numbers(ledger, user) == (25, 10, 0)


async def test_an_owner_that_was_taken_for_dead_adds_only_what_the_repair_did_not_know(
    ledger: Ledger, user: str
) -> None:
    turn = new_id()
    held = await ledger.reserve(user, turn[:12], TOKENS, 60)
    await ledger.settle_dead(user, turn, [Usage(10, 5), Usage(7, 3, estimated=True)])
    for _ in range(2):
        await ledger.settle(held, Cost(40))
        assert await numbers(ledger, user) == (40, 0, 0)


async def test_a_dead_turn_of_yesterday_is_settled_on_its_own_page(ledger: Ledger, user: str, clock: Clock) -> None:
    turn = new_id()
    held = await ledger.reserve(user, turn[:12], TOKENS, 60)
    clock.pass_by(12 * 3600)
    await ledger.settle_dead(user, turn, [Usage(10, 5)])
    assert await numbers(ledger, user) == (0, 0, 0)
    await ledger.settle(held, Cost(15))


async def test_reservations_that_nobody_settles_keep_nobody_out(ledger: Ledger, user: str, clock: Clock) -> None:
    orphan = await ledger.reserve(user, "a", TOKENS, 100)
    clock.pass_by(20 * 60)
    await refusal(ledger, user, TOKENS)
    clock.pass_by(60)
    await ledger.reserve(user, "b", TOKENS, 10)
    assert await numbers(ledger, user) == (0, 0, 10)
    await ledger.settle(orphan, Cost(30))
    assert await numbers(ledger, user) == (30, 0, 10), "an owner that lives after all is counted"


async def test_a_turn_that_was_taken_for_dead_reserves_again_what_was_released(
    ledger: Ledger, user: str, clock: Clock
) -> None:
    held = await ledger.reserve(user, "a", TOKENS, 40)
    clock.pass_by(21 * 60)
    other = await ledger.reserve(user, "b", TOKENS, 10)
    assert await numbers(ledger, user) == (0, 0, 10)
    more = await ledger.extend(held, TOKENS, 40)
    assert await numbers(ledger, user) == (0, 0, 90)
    clock.pass_by(60)
    more = await ledger.extend(more, TOKENS, 20)
    await ledger.settle(other, Cost(10))
    clock.pass_by(20 * 60)
    with pytest.raises(BudgetExceeded):
        await ledger.extend(more, TOKENS, 20)
    await refusal(ledger, user, TOKENS)
    await ledger.settle(more, Cost(95))
    assert await numbers(ledger, user) == (105, 0, 0)


async def test_the_next_reservation_releases_what_nobody_settles_and_a_late_repair_counts_it(
    ledger: Ledger, user: str, clock: Clock
) -> None:
    turn = new_id()
    await ledger.reserve(user, turn[:12], TOKENS, 40)
    clock.pass_by(21 * 60)
    await ledger.reserve(user, "b", TOKENS, 10)
    assert await numbers(ledger, user) == (0, 0, 10), "although it kept nobody out"
    for calls, spent in (([Usage(10, 5)], 15), ([Usage(10, 5)], 15), ([Usage(10, 5), Usage(7, 3)], 25)):
        await ledger.settle_dead(user, turn, calls)
        assert await numbers(ledger, user) == (spent, 0, 10), "once, and whoever knows more adds it"


async def test_of_a_deleted_user_only_todays_page_stays_and_refills_nothing(
    ledger: Ledger, user: str, clock: Clock
) -> None:
    yesterday = await ledger.reserve(user, "a", TOKENS, 60)
    clock.pass_by(24 * 3600)
    held = await ledger.reserve(user, "b", TOKENS, 60)
    for _ in range(2):
        await ledger.forget(user)
    await ledger.settle(held, Cost(100))
    await refusal(ledger, user, TOKENS)
    clock.pass_by(-24 * 3600)
    assert await numbers(ledger, user) == (0, 0, 0)
    await ledger.settle(yesterday, Cost(10))
    assert await numbers(ledger, user) == (0, 0, 0), "nothing is written to a page that was deleted"


async def test_todays_page_of_a_deleted_user_expires_with_its_day(
    aws: Aws, turns_table: str, user: str, clock: Clock
) -> None:
    ledger = DynamoLedger(turns_table, api=dynamodb_api(aws.endpoint), clock=clock)
    await ledger.reserve(user, "a", TOKENS, 60)
    await ledger.forget(user)
    key = {"session_id": {"S": f"budget#{user}"}, "item": {"S": "budget#2027-01-15"}}
    item = aws.dynamodb.get_item(TableName=turns_table, Key=key)["Item"]
    assert float(item["expires_at"]["N"]) == NOON + 12 * 3600
    await ledger.aclose()


async def test_a_charge_without_a_reservation_counts_once(ledger: Ledger, user: str) -> None:
    for _ in range(2):
        await ledger.charge(user, "0summary", Cost(12, 2))
    assert await numbers(ledger, user) == (12, 2, 0)


class LosesAnswers(MemoryLedger):
    """Writes what it is asked to, and does not say so the first time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.known = set[str]()

    async def settle(self, held: Reservation, cost: Cost) -> None:
        await super().settle(held, cost)
        self._lose(held.id)

    async def charge(self, user_id: str, charge_id: str, cost: Cost) -> None:
        await super().charge(user_id, charge_id, cost)
        self._lose(charge_id)

    def _lose(self, name: str) -> None:
        if name not in self.known:
            self.known.add(name)
            raise RegistryUnavailable("the answer was lost")


async def test_what_is_spent_after_a_settlement_whose_answer_is_lost_counts_as_well(clock: Clock) -> None:
    ledger = LosesAnswers(clock)
    budget = Account(ledger=ledger, user_id="ada", budget=TOKENS, reserve_tokens=50).open(new_id())
    await budget.admitted()
    for _ in range(3):
        budget.counted(Usage(10))
        await budget.settle()
    await budget.settle()
    assert await numbers(ledger, "ada") == (30, 0, 0)


async def test_a_reservation_whose_answer_is_lost_keeps_nothing_reserved(
    aws: Aws, turns_table: str, user: str, clock: Clock
) -> None:
    class Deaf(AwsJson):
        """Loses the answers to reservations, however often they are sent."""

        async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
            answer = await super().call(operation, **arguments)
            if arguments.get("ReturnValues") == "ALL_NEW":
                raise AwsUnreachable("the answer was lost")
            return answer

    deaf = Deaf(DYNAMODB, endpoint=aws.endpoint, credentials=Credentials("local", "local"))
    ledger = DynamoLedger(turns_table, api=deaf, clock=clock)
    with pytest.raises(RegistryUnavailable):
        await ledger.reserve(user, "a", Budget(tokens_per_day=100, requests_per_minute=2), 50)
    page = await ledger.spending(user)
    assert (page.requests, page.reserved, page.open) == (0, 0, ())
    await ledger.aclose()


async def test_a_page_fits_into_one_write_unit(aws: Aws, turns_table: str, user: str, clock: Clock) -> None:
    """DynamoDB bills a write by the size of the item: 1 KB is one unit."""
    ledger = DynamoLedger(turns_table, api=dynamodb_api(aws.endpoint), clock=clock)
    budget = Budget(requests_per_minute=10, tokens_per_day=1_000_000_000)
    clock.now = NOON - 12 * 3600
    for minute in range(2 * STALE_MINUTES):
        held = await ledger.reserve(user, new_id()[:12], budget, 20_000)
        if minute % 5:
            await ledger.settle(held, Cost(7_654))
        clock.pass_by(60)
    key = {"session_id": {"S": f"budget#{user}"}, "item": {"S": "budget#2027-01-15"}}
    item = aws.dynamodb.get_item(TableName=turns_table, Key=key)["Item"]
    assert sum(len(name) + len(str(next(iter(value.values())))) for name, value in item.items()) < 1024
    assert len([name for name in item if name.startswith("m")]) <= 3
    await ledger.aclose()
