"""The adapter: one connection per process, what it is opened with, and how it is closed."""

import asyncio
import gc
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from beanie import Document
from dns.name import EmptyLabel
from dns.resolver import NXDOMAIN, LifetimeTimeout, NoNameservers
from pymongo import MongoClient
from pymongo.database import Database

from local.ports import free_port
from omniagent.errors import ConfigurationError, ContractError, StorageError, StorageUnavailable
from omniagent.persistence.adapter import MongoBackendAdapter
from omniagent.persistence.documents import DocumentModels, Message, Session, Summary, User
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.session.ids import new_id
from tests.persistence.turns import converse, open_session, reply, summary, tip

Json = dict[str, Any]


@pytest.fixture
def another_database(mongod: str) -> Iterator[Database[Json]]:
    with MongoClient[Json](mongod) as client:
        name = f"test_{new_id()[:12]}"
        yield client[name]
        client.drop_database(name)


class Rated(Message):
    rating: int | None = None

    class Settings(Message.Settings):
        name = "rated_messages"
        indexes: ClassVar[list[Any]] = [*Message.Settings.indexes, "rating"]


class OtherUser(User): ...


class OtherSession(Session): ...


class OtherMessage(Message): ...


class OtherSummary(Summary): ...


class Order(Document):
    total: int


class StillRunning:
    """A turn that ends when it is told to."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._told = asyncio.Event()

    def shut_down(self) -> None:
        self.events.append("told")
        self._told.set()

    async def ended(self) -> None:
        await self._told.wait()
        self.events.append("stored")


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
        await open_session(first).head()
    second = await adapter.initialize()
    assert await open_session(second).head() is None
    await adapter.shutdown()


@pytest.mark.filterwarnings("ignore:.*socket:pytest.PytestUnraisableExceptionWarning")
async def test_an_adapter_that_could_not_connect_tries_again() -> None:
    adapter = MongoBackendAdapter(f"mongodb://127.0.0.1:{free_port()}", timeout_seconds=0.1)
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await adapter.initialize()
    gc.collect()  # the driver leaves a socket behind that was connecting when it was closed: not to the next test


@pytest.mark.parametrize(
    ("uri", "options", "said"),
    [
        ("http://127.0.0.1", {}, "MONGODB_URI"),
        ("mongodb://", {}, "MONGODB_URI"),
        ("mongodb://a:b:c@127.0.0.1", {}, "MONGODB_URI"),
        ("mongodb://h:notaport", {}, "MONGODB_URI"),
        ("", {}, "set MONGODB_URI"),
        ("mongodb://127.0.0.1", {"documents": DocumentModels}, r"DocumentModels\(…\)"),
    ],
)
async def test_what_cannot_be_used_is_a_matter_of_configuration(
    monkeypatch: pytest.MonkeyPatch, uri: str, options: Json, said: str
) -> None:
    monkeypatch.delenv("MONGODB_URI", raising=False)
    with pytest.raises(ConfigurationError, match=said):
        await MongoBackendAdapter(uri, **options).initialize()


@pytest.mark.parametrize(
    ("failure", "ours"),
    [
        (NXDOMAIN, StorageUnavailable),
        (NoNameservers, StorageUnavailable),
        (LifetimeTimeout, StorageUnavailable),
        (EmptyLabel, ConfigurationError),
    ],
)
async def test_an_unresolved_host_is_unavailable_and_a_malformed_one_misconfigured(
    monkeypatch: pytest.MonkeyPatch, failure: type[Exception], ours: type[Exception]
) -> None:
    async def resolve(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr("dns.asyncresolver.resolve", resolve)
    with pytest.raises(ours):
        await MongoBackendAdapter("mongodb+srv://u:secret@cluster.example.org").initialize()


async def test_what_is_not_given_is_read_from_the_environment(
    mongod: str, own_database: Database[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONGODB_URI", mongod)
    monkeypatch.setenv("MONGODB_DATABASE", own_database.name)
    async with MongoBackendAdapter() as store:
        await converse(open_session(store), [1])
    assert own_database.messages.count_documents({}) == 2


@pytest.mark.parametrize("options", ["readPreference=secondary&readConcernLevel=linearizable", "w=0"])
async def test_options_of_the_address_break_no_turn(mongod: str, own_database: Database[Json], options: str) -> None:
    joined = f"{mongod}{'&' if '?' in mongod else '?'}{options}"
    async with MongoBackendAdapter(joined, own_database.name) as store:
        session = open_session(store)
        await converse(session, [1, 2])
        assert await session.add_summary(summary(1, 1), await tip(session))
        assert (await session.load()).answer == reply(2, session=session)


async def test_indexes_are_made_once_per_schema_and_not_at_every_start(
    mongod: str, own_database: Database[Json]
) -> None:
    async def start(documents: DocumentModels) -> None:
        async with MongoBackendAdapter(mongod, own_database.name, documents=documents):
            pass

    await start(DocumentModels())
    assert len(own_database.messages.index_information()) == 1 + len(Message.Settings.indexes)
    own_database.messages.drop_indexes()
    await start(DocumentModels())
    assert set(own_database.messages.index_information()) == {"_id_"}, "the schema has not changed"
    await start(DocumentModels(message=Rated))
    assert "rating_1" in own_database.rated_messages.index_information()
    assert len(list(own_database.omniagent_schema.find())) == 2


# A second adapter


async def test_a_second_database_for_the_same_classes_is_refused_while_the_first_is_open(
    mongod: str, own_database: Database[Json], another_database: Database[Json]
) -> None:
    first = MongoBackendAdapter(mongod, own_database.name)
    second = MongoBackendAdapter(mongod, another_database.name)
    store = await first.initialize()
    with pytest.raises(ConfigurationError, match=rf"bound to the database '{own_database.name}'.*shutdown\(\)"):
        await second.initialize()
    await converse(open_session(store), [1])
    assert own_database.messages.count_documents({}) == 2
    await first.shutdown()
    async with second as store:
        await converse(open_session(store), [1])
    assert another_database.messages.count_documents({}) == 2
    assert own_database.messages.count_documents({}) == 2


async def test_classes_of_their_own_may_live_in_another_database(
    mongod: str, own_database: Database[Json], another_database: Database[Json]
) -> None:
    others = DocumentModels(user=OtherUser, session=OtherSession, message=OtherMessage, summary=OtherSummary)
    async with (
        MongoBackendAdapter(mongod, own_database.name) as store,
        MongoBackendAdapter(mongod, another_database.name, documents=others) as other,
    ):
        await converse(open_session(store), [1])
        await converse(open_session(other), [1, 2])
        assert await Message.find_all().count() == 2, "also through Beanie, which binds base classes, too"
        assert await OtherMessage.find_all().count() == 4
    assert own_database.messages.count_documents({}) == 2
    assert another_database.messages.count_documents({}) == 4


async def test_the_same_database_may_be_opened_twice(mongod: str, own_database: Database[Json]) -> None:
    documents = DocumentModels(further=(Order,))
    first = MongoBackendAdapter(mongod, own_database.name, documents=documents)
    second = MongoBackendAdapter(mongod, own_database.name, documents=documents)
    store, other = await first.initialize(), await second.initialize()
    await converse(open_session(other), [1])
    await second.shutdown()
    await converse(open_session(store), [1])
    await Order(total=3).insert()
    await first.shutdown()
    assert own_database.messages.count_documents({}) == 4
    assert own_database.Order.count_documents({}) == 1


# Closing


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """What a server's own handler of SIGUSR1 hears."""
    signals: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))
    yield signals
    signal.signal(signal.SIGUSR1, before)


async def test_a_signal_ends_the_turns_and_reaches_the_servers_own_handler(
    mongod: str, own_database: Database[Json], heard: list[int]
) -> None:
    servers_own = signal.getsignal(signal.SIGUSR1)
    adapter = MongoBackendAdapter(mongod, own_database.name)
    with pytest.raises(ConfigurationError, match="initialize"):
        adapter.end_turns_on(signal.SIGUSR1)
    store = await adapter.initialize()
    adapter.end_turns_on(signal.SIGUSR1)
    adapter.end_turns_on(signal.SIGUSR1)
    turn = StillRunning()
    store.open_turns.add(turn)
    signal.raise_signal(signal.SIGUSR1)
    await turn.ended()
    assert (turn.events, heard) == (["told", "stored"], [signal.SIGUSR1])
    await adapter.shutdown()
    assert signal.getsignal(signal.SIGUSR1) is servers_own


ENDED_BY_DEFAULT = """
import asyncio, signal, sys
from omniagent import MongoBackendAdapter

class Turn:
    def __init__(self): self.told = asyncio.Event()
    def shut_down(self): self.told.set()
    async def ended(self):
        await self.told.wait()
        await asyncio.sleep(0.05)
        print("stored", flush=True)

async def main():
    adapter = MongoBackendAdapter(sys.argv[1], sys.argv[2])
    store = await adapter.initialize()
    adapter.end_turns_on(signal.SIGTERM)
    store.open_turns.add(Turn())
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_where_the_default_would_kill_the_process_the_turns_are_stored_first(
    mongod: str, own_database: Database[Json]
) -> None:
    path = os.pathsep.join(sys.path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENDED_BY_DEFAULT, mongod, own_database.name,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.terminate()
    assert await process.stdout.read() == b"stored\n"
    assert await process.wait() == -signal.SIGTERM


# Mistakes


async def test_a_store_that_was_not_awaited_says_what_to_write(mongod: str) -> None:
    adapter = MongoBackendAdapter(mongod)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a coroutine that nobody awaited
        with pytest.raises(ConfigurationError, match=r"await adapter\.initialize\(\)"):
            MongoSessionManager(adapter.initialize(), "user:ada")  # type: ignore[arg-type]  # the mistake
        gc.collect()


@pytest.mark.parametrize("mistake", [None, "mongodb://127.0.0.1", object()])
def test_anything_that_is_no_store_says_what_to_pass(mistake: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"await MongoBackendAdapter\(…\)\.initialize\(\)"):
        MongoSessionManager(mistake, "user:ada")


async def test_a_class_made_from_one_that_is_bound_already_is_refused(
    mongod: str, own_database: Database[Json]
) -> None:
    async with MongoBackendAdapter(mongod, own_database.name):
        # Beanie has put expressions in the place of the class's defaults: they would be stored as values.
        class TooLate(Session): ...

        with pytest.raises(ContractError, match="TooLate was made after"):
            DocumentModels(session=TooLate)


async def test_a_login_by_the_functions_role_is_signed(mongod: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MongoDB itself knows this login only in Atlas: the local server refuses what the driver has signed."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of-the-role")
    uri = f"{mongod}{'&' if '?' in mongod else '/?'}authMechanism=MONGODB-AWS&authSource=%24external"
    with pytest.raises(StorageError, match="MONGODB-AWS"):
        await MongoBackendAdapter(uri).initialize()
