"""The documents: a team's own classes, the contract they keep, the connection and the errors that it translates."""

import asyncio
import gc
import inspect
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from beanie import Document
from bson.errors import InvalidDocument
from pymongo import ASCENDING, IndexModel, MongoClient
from pymongo import errors as driver
from pymongo.database import Database

from local.ports import free_port
from omniagent import DocumentModels, MongoBackendAdapter
from omniagent.errors import (
    ConfigurationError,
    ContractError,
    StorageConflict,
    StorageError,
    StorageRejected,
    StorageUnavailable,
)
from omniagent.persistence.connection import translate, translated
from omniagent.persistence.documents import Message, Session, Summary, User
from omniagent.session.identity import new_id
from tests.fixtures.conversation import QUICK, Conversation, Json


class TeamUser(User):
    plan: str = "free"


class TeamSession(Session):
    tags: list[str] = ["new"]  # noqa: RUF012 - pydantic copies it


class TeamMessage(Message):
    rating: int | None = None

    class Settings(Message.Settings):
        name = "team_messages"
        indexes: ClassVar = [*Message.Settings.indexes, IndexModel([("rating", ASCENDING)])]


class TeamSummary(Summary):
    language: str = "en"


TEAM = DocumentModels(user=TeamUser, session=TeamSession, message=TeamMessage, summary=TeamSummary)


@pytest.fixture
async def own_database(mongod: str) -> AsyncIterator[Database[Json]]:
    """A database of the test's own."""
    with MongoClient[Json](mongod) as client:
        name = f"test_{new_id()[:12]}"
        yield client[name]
        client.drop_database(name)


async def test_a_teams_own_classes_work_from_the_first_turn_to_the_summary(
    mongod: str, own_database: Database[Json], conversation: Conversation
) -> None:
    adapter = MongoBackendAdapter(mongod, own_database.name)
    store = await adapter.initialize(TEAM)
    team = conversation.but(store=store, database=own_database, settings=replace(QUICK, summary_after_turns=2))
    for text in ("My name is Ada.", "[echo:Two.]", "What is my name?"):
        await team.ask(text)
    await adapter.shutdown()
    [user], [session] = own_database.users.find(), own_database.sessions.find()
    messages, [summary] = list(own_database.team_messages.find()), own_database.summaries.find()
    assert (user["plan"], session["tags"], summary["language"]) == ("free", ["new"], "en")
    assert [message["rating"] for message in messages] == [None] * 6
    assert (summary["start_turn_number"], summary["end_turn_number"]) == (1, 2)
    assert "Ada" in str(messages[-1]["parts"])
    assert "messages" not in own_database.list_collection_names()
    assert "rating_1" in own_database.team_messages.index_information()


class NotADocument:
    pass


class WithoutField(Document):
    id: str  # type: ignore[assignment]
    client_id: str


class WrongType(Session):
    name: int | None = None  # type: ignore[assignment]


class NeedsMore(Message):
    tenant: str


class WithoutIndexes(Message):
    class Settings:
        name = "messages"


@pytest.mark.parametrize(
    ("models", "named"),
    [
        ({"user": NotADocument}, "DocumentModels.user must be a Beanie Document class"),
        ({"user": WithoutField}, "WithoutField lacks the field 'category'"),
        ({"session": WrongType}, "WrongType.name must be"),
        ({"message": NeedsMore}, "NeedsMore.tenant needs a default"),
        ({"message": WithoutIndexes}, "WithoutIndexes lacks the index on session_id, turn_number, role"),
    ],
)
async def test_a_class_that_breaks_the_contract_is_named_before_any_connection(models: Any, named: str) -> None:
    unreachable = MongoBackendAdapter(f"mongodb://127.0.0.1:{free_port()}", timeout_seconds=0.1)
    with pytest.raises(ContractError, match=named):
        await unreachable.initialize(DocumentModels(**models))


async def test_an_adapter_opens_once_however_often_it_is_asked(mongod: str, own_database: Database[Json]) -> None:
    adapter = MongoBackendAdapter(mongod, own_database.name)
    first, *others = await asyncio.gather(*(adapter.initialize() for _ in range(5)))
    assert all(store is first for store in others)
    await adapter.shutdown()


async def test_an_adapter_can_be_opened_again_after_its_shutdown(mongod: str, own_database: Database[Json]) -> None:
    adapter = MongoBackendAdapter(mongod, own_database.name)
    await adapter.shutdown()
    first = await adapter.initialize()
    await adapter.shutdown()
    await adapter.shutdown()
    with pytest.raises(StorageError):
        await first.answer("nobody", 1)
    second = await adapter.initialize()
    assert await second.answer("nobody", 1) is None
    await adapter.shutdown()


@pytest.mark.filterwarnings("ignore:.*socket:pytest.PytestUnraisableExceptionWarning")
async def test_an_adapter_that_could_not_connect_tries_again() -> None:
    adapter = MongoBackendAdapter(f"mongodb://127.0.0.1:{free_port()}", timeout_seconds=0.1)
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await adapter.initialize()
    gc.collect()  # the driver leaves a socket behind that was connecting when it was closed: not to the next test


@pytest.mark.parametrize("uri", ["http://127.0.0.1", "mongodb://", "mongodb://a:b:c@127.0.0.1", "mongodb://h:notaport"])
async def test_an_address_that_is_none_is_a_matter_of_configuration(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="MONGODB_URI"):
        await MongoBackendAdapter(uri).initialize()


def test_no_address_at_all_says_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match="set MONGODB_URI"):
        MongoBackendAdapter("")


async def test_indexes_are_made_once_per_schema_and_not_at_every_start(
    mongod: str, own_database: Database[Json]
) -> None:
    async def start(models: DocumentModels) -> None:
        adapter = MongoBackendAdapter(mongod, own_database.name)
        await adapter.initialize(models)
        await adapter.shutdown()

    await start(DocumentModels())
    assert set(own_database.messages.index_information()) == {
        "_id_",
        "session_id_1_turn_number_-1_role_1",
        "session_id_1_client_message_id_1",
    }
    own_database.messages.drop_indexes()
    await start(DocumentModels())
    assert set(own_database.messages.index_information()) == {"_id_"}, "the schema has not changed"
    await start(TEAM)
    assert "rating_1" in own_database.team_messages.index_information()
    assert len(list(own_database.omniagent_schema.find())) == 2


def _every(kind: type[driver.PyMongoError]) -> list[type[driver.PyMongoError]]:
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in _every(below))]


EVERY_DRIVER_ERROR = sorted(set(_every(driver.PyMongoError)), key=lambda kind: kind.__name__)


def raised(kind: type[driver.PyMongoError]) -> driver.PyMongoError:
    """One error of the kind, made the way the driver makes it."""
    more: dict[str, Any] = {
        "results": {"writeErrors": []},
        "verbose": False,
        "encrypted_fields": {},
        "cause": OSError(),
    }
    wanted = inspect.signature(kind.__init__).parameters
    arguments: dict[str, Any] = {name: value for name, value in more.items() if name in wanted}
    if "results" in wanted or "cause" in wanted:
        return kind(**arguments)
    return kind("host db-1.internal: secret detail", **arguments)


@pytest.mark.parametrize("kind", EVERY_DRIVER_ERROR, ids=lambda kind: kind.__name__)
def test_every_error_of_the_driver_becomes_one_of_ours_and_shows_nothing(kind: type[driver.PyMongoError]) -> None:
    with pytest.raises(StorageError) as caught, translated():
        raise raised(kind)
    assert "secret" not in caught.value.public
    assert isinstance(caught.value.__cause__, kind)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (driver.DuplicateKeyError("x"), StorageConflict),
        (driver.AutoReconnect("x"), StorageUnavailable),
        (driver.NetworkTimeout("x"), StorageUnavailable),
        (driver.NotPrimaryError("x"), StorageUnavailable),
        (driver.ServerSelectionTimeoutError("x"), StorageUnavailable),
        (driver.ExecutionTimeout("x"), StorageUnavailable),
        (driver.WTimeoutError("x"), StorageUnavailable),
        (driver.OperationFailure("x"), StorageRejected),
        (driver.OperationFailure("x", details={"errorLabels": ["TransientTransactionError"]}), StorageUnavailable),
        (driver.InvalidOperation("x"), StorageRejected),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_who_must_act_decides_what_an_error_becomes(theirs: driver.PyMongoError, ours: type[StorageError]) -> None:
    assert type(translate(theirs)) is ours


@pytest.mark.parametrize("unstorable", [InvalidDocument("x"), OverflowError("x")])
def test_what_has_no_place_in_bson_is_rejected(unstorable: Exception) -> None:
    with pytest.raises(StorageRejected), translated():
        raise unstorable
