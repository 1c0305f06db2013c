"""One contract for every counter: each test runs in memory, on DynamoDB and on MongoDB."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from local.aws import Aws
from omniagent import Spending, SpendingCounter, Usage
from omniagent.aws.turn_table import DynamoCounter
from omniagent.budget.spending import agent_account
from omniagent.errors import RegistryUnavailable, TooManyRequests
from omniagent.persistence.mongo_registry import MongoCounter
from omniagent.session.ids import new_id
from omniagent.testing import MemoryCounter
from tests.fixtures.conversation import Clock, dynamodb_api
from tests.fixtures.proxy import proxy_to
from tests.fixtures.wire_formats import HttpWire

NOON = 1_800_014_400.0  # 2027-01-15T12:00:00Z


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture
def user() -> str:
    return new_id()


@pytest.fixture
async def table(aws: Aws, turns_table: str, clock: Clock) -> AsyncIterator[DynamoCounter]:
    counter = DynamoCounter(turns_table, api=dynamodb_api(aws.endpoint), clock=clock)
    yield counter
    await counter.aclose()


@pytest.fixture(params=["memory", "dynamodb", "mongodb"])
def counter(request: pytest.FixtureRequest, clock: Clock) -> SpendingCounter:
    if request.param == "memory":
        return MemoryCounter(clock)
    if request.param == "mongodb":
        return MongoCounter(request.getfixturevalue("store"), clock=clock)
    table: DynamoCounter = request.getfixturevalue("table")
    return table


def numbers(spending: Spending) -> tuple[int, int, int]:
    return spending.tokens, spending.estimated, spending.requests


async def test_tokens_add_up_for_one_user_only(counter: SpendingCounter, user: str) -> None:
    await counter.add(user, Usage(20, 5))
    assert numbers(await counter.add(user, Usage(7, 3, estimated=True))) == (35, 10, 0)
    assert numbers(await counter.read(user)) == (35, 10, 0)
    assert numbers(await counter.read(new_id())) == (0, 0, 0)


async def test_concurrent_additions_are_all_counted(counter: SpendingCounter, user: str) -> None:
    replies = await asyncio.gather(*(counter.add(user, Usage(1)) for _ in range(30)))
    assert max(reply.tokens for reply in replies) == 30
    assert (await counter.read(user)).tokens == 30


async def test_the_next_day_starts_at_zero(counter: SpendingCounter, user: str, clock: Clock) -> None:
    spent = await counter.add(user, Usage(100))
    assert spent.exceeded().retry_after == 12 * 3600
    assert str(spent.exceeded().reset_at) == "2027-01-16 00:00:00+00:00"
    clock.pass_by(12 * 3600)
    assert numbers(await counter.read(user)) == (0, 0, 0)
    assert numbers(await counter.add(user, Usage(7))) == (7, 0, 0)


async def test_requests_are_limited_by_the_minute(counter: SpendingCounter, user: str, clock: Clock) -> None:
    await counter.add(user, Usage(100))
    clock.pass_by(15)
    for requests in (1, 2):
        assert numbers(await counter.count_request(user, 2)) == (100, 0, requests)
    with pytest.raises(TooManyRequests) as refused:
        await counter.count_request(user, 2)
    assert refused.value.retry_after == 45.0
    assert (await counter.read(user)).requests == 2
    clock.pass_by(45)
    assert numbers(await counter.count_request(user, 2)) == (100, 0, 1)


async def test_concurrent_requests_are_admitted_up_to_the_limit(counter: SpendingCounter, user: str) -> None:
    ended = await asyncio.gather(*(counter.count_request(user, 3) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(each, TooManyRequests) for each in ended) == 7


async def test_a_deleted_user_keeps_only_todays_count(counter: SpendingCounter, user: str, clock: Clock) -> None:
    accounts = (user, agent_account(user, "sales"))
    for account in accounts:
        await counter.add(account, Usage(60))
    clock.pass_by(24 * 3600)
    for account in accounts:
        await counter.add(account, Usage(100))
    for _ in range(2):
        await counter.forget(user)
    assert [(await counter.read(account)).tokens for account in accounts] == [100, 100]
    clock.pass_by(-24 * 3600)
    assert [(await counter.read(account)).tokens for account in accounts] == [0, 0]


async def test_an_addition_whose_reply_is_lost_counts_once(
    aws: Aws, turns_table: str, table: DynamoCounter, user: str, clock: Clock
) -> None:
    async with proxy_to(aws.endpoint, HttpWire()) as proxy:
        deaf = DynamoCounter(turns_table, api=dynamodb_api(proxy.url), clock=clock)
        with proxy.losing_answers(), pytest.raises(RegistryUnavailable):
            await deaf.add(user, Usage(10))
        await deaf.aclose()
    assert (await table.read(user)).tokens == 10


async def test_an_item_stays_within_one_write_unit_and_ends_with_its_day(
    aws: Aws, turns_table: str, table: DynamoCounter, user: str, clock: Clock
) -> None:
    """DynamoDB bills a write by the size of the item: 1 KB is one unit."""
    clock.now = NOON - 12 * 3600
    for _ in range(40):
        await table.count_request(user, 10)
        await table.add(user, Usage(7_654, estimated=True))
        clock.pass_by(60)
    key = {"session_id": {"S": f"budget#{user}"}, "item": {"S": "budget#2027-01-15"}}
    item = aws.dynamodb.get_item(TableName=turns_table, Key=key)["Item"]
    assert sum(len(name) + len(str(next(iter(value.values())))) for name, value in item.items()) < 1024
    assert len([name for name in item if name.startswith("m")]) <= 3
    assert float(item["expires_at"]["N"]) == NOON + 12 * 3600
