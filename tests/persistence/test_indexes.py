"""Index builds: a request never waits for a long one, and `make migrate` waits as long as it takes."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from omniagent.persistence import mongodb
from omniagent.persistence.adapter import MongoBackendAdapter
from omniagent.persistence.documents import DocumentModels, Message
from omniagent.session.ids import new_id
from tests.fixtures.profiler import profiled

Json = dict[str, Any]
INDEX = "weight_1_session_id_1"


class Weighed(Message):
    weight: int = 0

    class Settings(Message.Settings):
        indexes: ClassVar[list[Any]] = [*Message.Settings.indexes, [("weight", 1), ("session_id", 1)]]


@pytest.fixture
def large(mongod: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database[Json]]:
    """A database that an earlier release has filled, and whose messages count as many."""
    with MongoClient[Json](mongod) as client:
        name = f"test_{new_id()[:12]}"
        client[name].messages.insert_many({"_id": f"m{n}", "session_id": f"s{n}"} for n in range(200))
        monkeypatch.setattr(mongodb, "SMALL_COLLECTION", 100)
        yield client[name]
        client.drop_database(name)


class Marked(Message):
    mark: int = 0

    class Settings(Message.Settings):
        indexes: ClassVar[list[Any]] = [*Message.Settings.indexes, [("mark", 1)]]


def adapter(mongod: str, database: Database[Json], message: type[Message] = Weighed) -> MongoBackendAdapter:
    return MongoBackendAdapter(mongod, database.name, documents=DocumentModels(message=message), timeout_seconds=8)


async def migrate(mongod: str, database: Database[Json], message: type[Message]) -> set[str]:
    """Deploy a release, and return the names of the indexes of messages."""
    connected = adapter(mongod, database, message)
    try:
        await connected.build_indexes()
    finally:
        await connected.shutdown()
    return set(database.messages.index_information())


async def test_a_request_does_not_wait_for_the_index_of_a_large_collection(
    mongod: str, large: Database[Json], caplog: pytest.LogCaptureFixture
) -> None:
    async with adapter(mongod, large):
        assert "indexes may be missing" in caplog.text
    assert list(large.messages.index_information()) == ["_id_"]
    assert len(large.sessions.index_information()) > 1, "small collections get theirs at once"
    assert large[mongodb.SCHEMA_COLLECTION].count_documents({}) == 0


async def test_a_migration_builds_every_index_and_notes_it(
    mongod: str, large: Database[Json], caplog: pytest.LogCaptureFixture
) -> None:
    with profiled(large, **{"command.createIndexes": "messages"}) as builds:
        await migrate(mongod, large, Weighed)
    [build] = builds
    assert build["command"]["maxTimeMS"] > 24 * 3600 * 1000, "the server aborts a longer build"
    assert INDEX in large.messages.index_information()
    assert large[mongodb.SCHEMA_COLLECTION].count_documents({}) == 1
    caplog.clear()
    async with adapter(mongod, large):
        assert "indexes may be missing" not in caplog.text


async def test_an_index_is_dropped_one_release_after_its_last(
    mongod: str, large: Database[Json], caplog: pytest.LogCaptureFixture
) -> None:
    large.messages.create_index("operator_s_own")
    assert INDEX in await migrate(mongod, large, Weighed)
    assert {INDEX, "mark_1"} <= await migrate(mongod, large, Marked), "the release before still runs"
    assert {INDEX, "mark_1"} <= await migrate(mongod, large, Weighed), "a rollback finds what it needs"
    left = await migrate(mongod, large, Message)
    assert INDEX in left
    assert "mark_1" not in left
    assert "operator_s_own_1" in left
    caplog.clear()
    async with adapter(mongod, large, Marked):
        assert "indexes may be missing" in caplog.text, "a release that comes back does not believe its old note"
