"""One contract for every registry: in memory, on MongoDB and on DynamoDB. Then what only the servers do."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from local.aws import Aws
from local.ports import free_port
from omniagent import MongoBackendAdapter, MongoTurnRegistry
from omniagent.aws.turn_table import DynamoRegistry
from omniagent.errors import ConfigurationError, RegistryMisconfigured, RegistryUnavailable
from omniagent.session.ids import new_id
from omniagent.turns.journal.readers import fold
from omniagent.turns.registry import MAX_CHUNK_BYTES, Chunk, MemoryRegistry, Signals, TurnRegistry
from tests.fixtures.conversation import Clock, dynamodb_api
from tests.fixtures.http_server import Endpoint

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["memory", "mongodb", "dynamodb"])
def opened(request: pytest.FixtureRequest, clock: Clock) -> TurnRegistry:
    if request.param == "memory":
        return MemoryRegistry(clock=clock)
    if request.param == "mongodb":
        return MongoTurnRegistry(request.getfixturevalue("store"), clock=clock)
    api = dynamodb_api(request.getfixturevalue("aws").endpoint)
    return DynamoRegistry(request.getfixturevalue("turns_table"), api=api, clock=clock)


@pytest.fixture
async def registry(opened: TurnRegistry) -> AsyncIterator[TurnRegistry]:
    yield opened
    if isinstance(opened, DynamoRegistry):
        await opened.aclose()


@pytest.fixture
def session() -> str:
    """The key of a session that nobody else knows."""
    return f"{new_id()}:chat"


def chunk(number: int, lines: bytes = b"", run: str = "run-1") -> Chunk:
    return Chunk(number, run, NOW, lines or b"line %d" % number)


# The contract


async def test_chunks_are_read_in_order_after_a_number(registry: TurnRegistry, session: str) -> None:
    assert await registry.read(session, "j") == []
    assert await registry.read(session, "j", newest=True) == []
    chunks = [chunk(number, b"\x00\n\xff" * number) for number in range(12)]
    for each in random.Random(1).sample(chunks, 12):
        assert await registry.append(session, "j", each)
    assert await registry.append(session, "jk", chunk(0, b"of another journal"))
    assert await registry.append(f"{session}2", "j", chunk(0, b"of another session"))
    assert await registry.read(session, "j") == chunks
    assert await registry.read(session, "j", 9) == chunks[10:]
    assert await registry.read(session, "j", 3, newest=True) == chunks[11:]
    assert await registry.read(session, "j", 11) == []


async def test_a_number_is_written_by_one_run_only(registry: TurnRegistry, session: str) -> None:
    first = chunk(0, b"first")
    assert [await registry.append(session, "j", first) for _ in range(2)] == [True, True], "a reply was lost"
    assert not await registry.append(session, "j", chunk(0, b"other", "run-2"))
    assert await registry.read(session, "j") == [first]
    assert await registry.append(session, "j", chunk(1, b"other", "run-2"))


async def test_of_runs_that_write_a_number_at_the_same_moment_one_does(registry: TurnRegistry, session: str) -> None:
    runs = [f"run-{number}" for number in range(6)]
    written = await asyncio.gather(*(registry.append(session, "j", chunk(0, b"x", run)) for run in runs))
    assert written.count(True) == 1
    [stored] = await registry.read(session, "j")
    assert stored.run == runs[written.index(True)]


async def test_a_journal_of_the_largest_chunks_is_read_completely(registry: TurnRegistry, session: str) -> None:
    for number in range(5):  # more than DynamoDB returns at once
        assert await registry.append(session, "j", chunk(number, random.Random(number).randbytes(MAX_CHUNK_BYTES)))
    assert [len(each.lines) for each in await registry.read(session, "j")] == [MAX_CHUNK_BYTES] * 5


async def test_signals_add_up(registry: TurnRegistry, session: str) -> None:
    assert await registry.signals(session, "j") == Signals()
    await registry.signal(session, "j", mail=True)
    await registry.signal(session, "j", stop=True)
    await registry.signal(session, "j", stop=True, mail=True)
    assert await registry.signals(session, "j") == Signals(stop=True, mail=2)
    assert await registry.signals(session, "other") == Signals()


async def test_readers_are_counted_until_they_leave_or_expire(registry: TurnRegistry, clock: Clock) -> None:
    user = new_id()
    assert await registry.count_reader(user, "gone", 0) == 0
    assert await registry.count_reader(user, "dead", 60) == 1
    assert await registry.count_reader(user, "dead", 60) == 1, "the same one again"
    assert await registry.count_reader(new_id(), "other", 60) == 1
    clock.pass_by(59)
    assert await registry.count_reader(user, "second", 60) == 2
    clock.pass_by(1)
    assert await registry.count_reader(user, "third", 60) == 2, "the first one's process died"
    assert [await registry.count_reader(user, "third", 0) for _ in range(2)] == [1, 1]
    assert await registry.count_reader(user, "fourth", 60) == 2


async def test_of_many_readers_at_the_same_moment_each_is_counted(registry: TurnRegistry) -> None:
    user = new_id()
    counts = await asyncio.gather(*(registry.count_reader(user, str(number), 60) for number in range(8)))
    assert sorted(counts) == list(range(1, 9))


async def test_a_session_is_erased_in_pieces_and_nothing_else_is(registry: TurnRegistry, session: str) -> None:
    for journal in "abc":
        for number in range(2):
            await registry.append(session, journal, chunk(number))
        await registry.signal(session, journal, stop=True)
    await registry.append(f"{session}2", "a", chunk(0))
    await registry.signal(f"{session}2", "a", stop=True)
    while not await registry.erase(session, 2):
        pass
    assert [await registry.read(session, journal) for journal in "abc"] == [[], [], []]
    assert [await registry.signals(session, journal) for journal in "abc"] == [Signals()] * 3
    assert len(await registry.read(f"{session}2", "a")) == 1
    assert (await registry.signals(f"{session}2", "a")).stop
    assert await registry.erase(session)


async def test_the_readers_of_an_erased_user_are_forgotten(registry: TurnRegistry, session: str) -> None:
    user = session.partition(":")[0]
    await registry.count_reader(user, "first", 60)
    await registry.append(session, "j", chunk(0))
    while not await registry.erase(user):
        pass
    assert await registry.count_reader(user, "second", 60) == 1
    assert len(await registry.read(session, "j")) == 1, "sessions are erased by their own keys"


# In memory


async def test_the_oldest_journals_are_dropped_when_memory_is_full() -> None:
    registry = MemoryRegistry(max_bytes=100)
    for journal in "abc":
        await registry.append("s", journal, chunk(0, b"x" * 60))
    assert [len(await registry.read("s", journal)) for journal in "abc"] == [0, 0, 1]


# Servers

Use = Callable[[TurnRegistry, str], Awaitable[object]]
EVERY_USE: dict[str, Use] = {
    "append": lambda registry, session: registry.append(session, "j", chunk(0)),
    "read": lambda registry, session: registry.read(session, "j"),
    "signal": lambda registry, session: registry.signal(session, "j", stop=True),
    "signals": lambda registry, session: registry.signals(session, "j"),
    "count_reader": lambda registry, session: registry.count_reader(session, "r", 60),
    "erase": lambda registry, session: registry.erase(session),
}
each_use = pytest.mark.parametrize("use", EVERY_USE.values(), ids=EVERY_USE)


@each_use
async def test_a_table_that_cannot_be_reached_is_unavailable(session: str, use: Use) -> None:
    nowhere = dynamodb_api(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(RegistryUnavailable):
        await use(DynamoRegistry("turns", api=nowhere), session)


@each_use
async def test_a_table_that_does_not_exist_is_a_wrong_setting(aws: Aws, session: str, use: Use) -> None:
    """It is unavailable as well: a turn that runs goes on without it."""
    assert issubclass(RegistryMisconfigured, RegistryUnavailable)
    with pytest.raises(ConfigurationError, match=r"no-such-table.*ResourceNotFoundException"):
        await use(DynamoRegistry("no-such-table", api=dynamodb_api(aws.endpoint)), session)


@each_use
async def test_a_database_that_cannot_be_reached_is_unavailable(mongod: str, session: str, use: Use) -> None:
    async with MongoBackendAdapter(mongod, "unreachable") as store:
        registry = MongoTurnRegistry(store)
    with pytest.raises(RegistryUnavailable):
        await use(registry, session)


async def test_a_refusal_that_no_setting_explains_is_unavailable(session: str) -> None:
    refusal = (400, {"__type": "com.amazonaws.dynamodb.v20120810#ReplicatedWriteConflictException"})
    with Endpoint(refusal) as endpoint:
        registry = DynamoRegistry("turns", api=dynamodb_api(endpoint.url))
        with pytest.raises(RegistryUnavailable) as raised:
            await registry.signals(session, "j")
        await registry.aclose()
    assert not isinstance(raised.value, ConfigurationError)


async def test_every_item_of_the_table_expires(aws: Aws, turns_table: str, session: str, clock: Clock) -> None:
    """TTL is late, never early: a journal is needed until the sweep has finished its turn."""
    registry = DynamoRegistry(turns_table, api=dynamodb_api(aws.endpoint), clock=clock, kept_days=3)
    await registry.append(session, "j", chunk(0))
    await registry.signal(session, "j", stop=True)
    await registry.count_reader(session, "r", 60)
    await registry.count_reader(f"{session}2", "late", 0)  # after its user was deleted
    lives = {item["item"]["S"]: int(item["expires_at"]["N"]) - clock.now for item in _items(aws, turns_table, session)}
    assert lives.pop("readers") == 3660
    assert len(lives) == 2
    assert set(lives.values()) == {3 * 86400}
    assert _items(aws, turns_table, f"{session}2") == []


async def test_a_tick_of_text_costs_one_write_unit(aws: Aws, turns_table: str) -> None:
    """DynamoDB bills by the names and values of an item, in units of 1 KB."""
    registry, words = DynamoRegistry(turns_table, api=dynamodb_api(aws.endpoint)), random.Random(1)
    session, journal = f"{new_id()[:24]}:{new_id()}", new_id()
    deltas = ("".join(words.choice("etaoinshrdlu  ") for _ in range(5)) for _ in range(40))
    lines = b"\n".join(b'{"type":"text-delta","id":"0","delta":"%s"}' % each.encode() for each in deltas)
    await registry.append(session, journal, chunk(0, lines, new_id()[:12]))
    [item] = _items(aws, turns_table, session)
    values = [(name, each) for name, value in item.items() for each in value.values()]
    assert sum(len(name) + len(each if isinstance(each, bytes) else str(each)) for name, each in values) < 1024


async def test_a_chunk_that_cannot_be_read_keeps_its_number(aws: Aws, turns_table: str, session: str) -> None:
    registry = DynamoRegistry(turns_table, api=dynamodb_api(aws.endpoint))
    for number in range(3):
        await registry.append(session, "j", chunk(number))
    key = {"session_id": {"S": session}, "item": {"S": "journal#j#00000001"}}
    broken: dict[str, Any] = {"run": {"S": "run-1"}, "at": {"N": "1"}, "lines": {"B": b"no zlib"}}
    aws.dynamodb.put_item(TableName=turns_table, Item=broken | key)
    chunks = await registry.read(session, "j")
    assert [each.number for each in chunks] == [0, 1, 2]
    assert not fold(chunks).is_readable


def _items(aws: Aws, table: str, owner: str) -> list[dict[str, Any]]:
    condition, values = "session_id = :owner", {":owner": {"S": owner}}
    found = aws.dynamodb.query(TableName=table, KeyConditionExpression=condition, ExpressionAttributeValues=values)
    items: list[dict[str, Any]] = found["Items"]
    return items
