"""The documents: a team's own classes, the contract they keep, and the hook that fills them."""

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar
from uuid import UUID

import pytest
from beanie import Document, Indexed
from bson import ObjectId
from pydantic import BaseModel, SecretStr
from pymongo import ASCENDING, IndexModel
from pymongo.database import Database

from omniagent.errors import ConfigurationError, ContractError, StorageRejected
from omniagent.http.resources import MessageList, SessionResource
from omniagent.persistence.adapter import MongoBackendAdapter
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.documents import DocumentModels, Message, Session, Summary, User
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.persistence.stored_session import from_bson
from omniagent.session.ids import new_id
from omniagent.session.live import QueuedMessage
from omniagent.turns.state_events import End, Enqueue, Reply, Wait
from tests.persistence.turns import apply, begin, converse, end, open_session, reply, summary, tip

Json = dict[str, Any]


class Plan(Enum):
    FREE = "free"
    GOLD = "gold"


class Address(BaseModel):
    city: str
    since: date


class Everything(BaseModel):
    """A field of each kind that Beanie can store."""

    plan: Plan = Plan.GOLD
    balance: Decimal = Decimal("10.50")
    birthday: date = date(1990, 2, 3)
    seen_at: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    tags: set[str] = {"a", "b"}
    frozen: frozenset[int] = frozenset({1, 2})
    reference: UUID = UUID(int=7)
    pause: timedelta = timedelta(seconds=90)
    home: Address = Address(city="Lisbon", since=date(2020, 1, 1))
    homes: list[Address] = [Address(city="Porto", since=date(2021, 1, 1))]
    by_name: dict[str, Plan] = {"ada": Plan.FREE}
    pair: tuple[int, str] = (1, "x")
    blob: bytes = b"\x00\xff"
    address: IPv4Address = IPv4Address("127.0.0.1")
    path: PurePosixPath = PurePosixPath("/a/b")
    secret: SecretStr = SecretStr("hidden")
    nothing: int | None = None
    ratio: float = 0.5
    active: bool = True


class EveryUser(User, Everything): ...


class EverySession(Session, Everything):
    api_fields: ClassVar = ("plan", "balance", "home")


class EveryMessage(Message, Everything):
    api_fields: ClassVar = ("tags",)

    class Settings(Message.Settings):
        name = "every_message"
        keep_nulls = False
        use_revision = True


class EverySummary(Summary, Everything): ...


class Order(Document):
    number: Annotated[int, Indexed(unique=True)]
    user: str

    class Settings:
        name = "orders"
        indexes: ClassVar = [IndexModel([("user", ASCENDING)])]


EVERY = DocumentModels(
    user=EveryUser, session=EverySession, message=EveryMessage, summary=EverySummary, further=(Order,)
)


class Tenant(BaseModel):
    tenant: str = ""


class TenantUser(User, Tenant): ...


class TenantSession(Session, Tenant): ...


class TenantMessage(Message, Tenant): ...


class TenantSummary(Summary, Tenant): ...


TENANT = {"user": TenantUser, "session": TenantSession, "message": TenantMessage, "summary": TenantSummary}


@pytest.fixture
async def every(mongod: str, own_database: Database[Json]) -> AsyncIterator[ConversationStore]:
    async with MongoBackendAdapter(mongod, own_database.name, documents=EVERY) as store:
        yield store


async def everything_done(store: ConversationStore) -> MongoSessionManager:
    """A session with one of each document, made by a turn."""
    session = open_session(store)
    await converse(session, [1, 2])
    assert await session.add_summary(summary(1, 1), await tip(session))
    return session


async def test_every_field_type_works_in_every_document(every: ConversationStore) -> None:
    await everything_done(every)
    stored = [
        from_bson(model, document)
        for collection, model in (
            (every.users, EveryUser),
            (every.sessions, EverySession),
            (every.messages, EveryMessage),
            (every.summaries, EverySummary),
        )
        async for document in collection.find()
    ]
    assert len(stored) == 7
    expected = Everything().model_dump()
    for document in stored:
        assert document.model_dump(include=set(Everything.model_fields)) == expected


async def test_settings_of_a_class_are_obeyed(every: ConversationStore, own_database: Database[Json]) -> None:
    session = open_session(every)
    await begin(session, 1)
    waiting = reply(1, "waiting", session=session)
    for event in (Wait("run", waiting), Reply("run-2", waiting), End("run-2", reply(1, session=session))):
        await apply(session, event)
    [document] = own_database.every_message.find({"role": "assistant"})
    assert "nothing" not in document, "keep_nulls is off"
    assert "revision_id" in document
    assert [user["nothing"] for user in own_database.users.find()] == [None]
    assert "messages" not in own_database.list_collection_names()


async def test_no_id_is_made_by_a_generator_that_a_snapshot_repeats(
    every: ConversationStore, own_database: Database[Json]
) -> None:
    await everything_done(every)
    assert all(isinstance(each["_id"], str) for name in ("users", "sessions") for each in own_database[name].find())
    ids = [each["_id"] for name in ("every_message", "summaries") for each in own_database[name].find()]
    assert all(isinstance(each, str) and not ObjectId.is_valid(each) for each in ids), "not as text either"


async def test_further_documents_are_bound_and_indexed(every: ConversationStore, own_database: Database[Json]) -> None:
    await Order(number=7, user="ada").insert()
    assert [order.number for order in await Order.find(Order.user == "ada").to_list()] == [7]
    assert {"number_1", "user_1"} <= set(own_database.orders.index_information())


async def test_a_teams_fields_are_read_through_the_api_if_the_class_says_so(every: ConversationStore) -> None:
    session = await everything_done(every)
    catalog = Catalog(every)
    resource = SessionResource.of(await catalog.get(session.key))
    assert resource.extra == {
        "plan": "gold",
        "balance": "10.50",
        "home": {"city": "Lisbon", "since": "2020-01-01"},
    }
    messages = MessageList.of(
        session.key, await catalog.messages_page(await catalog.get(session.key), limit=4), None
    ).messages
    assert [sorted(message["metadata"]["extra"]["tags"]) for message in messages] == [["a", "b"]] * 4


async def test_a_category_can_change_and_no_category_leaves_it(
    store: ConversationStore, database: Database[Json]
) -> None:
    user = f"user:{new_id()}"
    for category, expected in ((None, None), ("free", "free"), ("$gold", "$gold"), (None, "$gold")):
        session = MongoSessionManager(store, user, "chat", category=category)
        await apply(session, Enqueue(QueuedMessage("Hello", new_id())))
        document = database.sessions.find_one({"_id": session.key})
        assert document is not None
        assert document["category"] == expected


@pytest.mark.parametrize("method", ["save", "replace"])
async def test_a_document_read_earlier_cannot_overwrite_a_turn(every: ConversationStore, method: str) -> None:
    session = open_session(every)
    await converse(session, [1])
    document = await EverySession.get(session.key)
    assert document is not None
    await begin(session, 2)
    document.plan = Plan.FREE
    with pytest.raises(ContractError, match=r"await document\.set\(\{EverySession\.your_field: value\}\)"):
        await getattr(document, method)()
    await document.set({EverySession.plan: Plan.FREE})
    await end(session, 2)
    stored = await EverySession.get(session.key)
    assert stored is not None
    assert (stored.plan, stored.latest_turn_number) == (Plan.FREE, 2)


# The hook


class Filled:
    """A hook that writes down what it is called with, and fails where it is told to."""

    def __init__(self, *, fails_for: type[Document] | None = None, role: str = "user") -> None:
        self.calls: list[str] = []
        self.fails_for = fails_for
        self.role = role

    async def __call__(self, document: Any, user: str, category: str | None) -> None:
        self.calls.append(f"{type(document).__name__} {getattr(document, 'role', '')}".strip())
        document.tenant = f"{user}/{category}"
        if self.fails_for and isinstance(document, self.fails_for) and getattr(document, "role", "user") == self.role:
            raise KeyError("no tenant")


async def test_the_hook_fills_each_new_document_once(mongod: str, own_database: Database[Json]) -> None:
    fill = Filled()
    models = DocumentModels(**TENANT, fill=fill)  # type: ignore[arg-type]
    async with MongoBackendAdapter(mongod, own_database.name, documents=models) as store:
        for number in (1, 2):
            session = MongoSessionManager(store, "ada", "chat", category="gold")
            await converse(session, [number])
        await session.add_summary(summary(1, 1), await tip(session))
        await Catalog(store).create(session)
        created = MongoSessionManager(store, "ada", "created", category="gold")
        document, _ = await Catalog(store).create(created)
        assert vars(document)["tenant"] == "ada/gold"
        await converse(created, [1])
    assert fill.calls == [
        "TenantMessage user", "TenantUser", "TenantSession", "TenantMessage assistant",
        "TenantMessage user", "TenantMessage assistant",
        "TenantSummary",
        "TenantSession", "TenantMessage user", "TenantMessage assistant",
    ]  # fmt: skip
    for name in ("users", "sessions", "messages", "summaries"):
        assert {document["tenant"] for document in own_database[name].find()} == {"ada/gold"}


@pytest.mark.parametrize("broken", [User, Session, Message])
async def test_a_hook_that_fails_before_the_turn_stores_nothing_of_it(
    mongod: str, own_database: Database[Json], broken: type[Document]
) -> None:
    models = DocumentModels(**TENANT, fill=Filled(fails_for=broken))  # type: ignore[arg-type]
    async with MongoBackendAdapter(mongod, own_database.name, documents=models) as store:
        with pytest.raises(ConfigurationError, match=f"fill failed for a Tenant{broken.__name__}.*no tenant"):
            await begin(open_session(store), 1)
    assert own_database.sessions.count_documents({}) == 0
    assert own_database.messages.count_documents({}) == 0


async def test_a_hook_that_fails_loses_no_answer_and_no_summary(mongod: str, own_database: Database[Json]) -> None:
    fill = Filled()
    models = DocumentModels(**TENANT, fill=fill)  # type: ignore[arg-type]
    async with MongoBackendAdapter(mongod, own_database.name, documents=models) as store:
        session = open_session(store)
        await begin(session, 1)
        fill.fails_for, fill.role = Message, "assistant"
        await end(session, 1)
        await begin(session, 2)
        fill.fails_for, fill.role = Summary, "user"
        assert await session.add_summary(summary(1, 1), await tip(session))
    answer, made = own_database.messages.find_one({"role": "assistant"}), own_database.summaries.find_one()
    assert answer is not None
    assert made is not None
    assert (answer["tenant"], made["tenant"]) == ("", ""), "its default, not what the hook had half done"


class AnyMessage(Message):
    tenant: Any = None


async def test_a_value_that_cannot_be_stored_is_rejected_and_nothing_is_half_done(
    mongod: str, own_database: Database[Json]
) -> None:
    def fill(document: Any, _user: str, _category: str | None) -> None:
        if isinstance(document, Message):
            document.tenant = object()

    models = DocumentModels(message=AnyMessage, fill=fill)
    async with MongoBackendAdapter(mongod, own_database.name, documents=models) as store:
        session = open_session(store)
        with pytest.raises(StorageRejected, match="AnyMessage cannot be stored"):
            await begin(session, 1)
        assert await session.head() is None


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (
            lambda document, *_: setattr(document, "tenant", 7),
            "fill set 7 in Tenant[A-Z][a-z]+: tenant: Input should be a valid string",
        ),
        (
            lambda document, *_: setattr(document, "created_at", None),
            "fill changed Tenant[A-Z][a-z]+.created_at: set only fields of your own",
        ),
        (lambda document, *_: document, "fill must change the document and return None, not Tenant"),
    ],
)
async def test_a_hook_that_would_make_a_document_unreadable_is_told_so(
    mongod: str, own_database: Database[Json], fill: Any, said: str
) -> None:
    models = DocumentModels(**TENANT, fill=fill)  # type: ignore[arg-type]
    async with MongoBackendAdapter(mongod, own_database.name, documents=models) as store:
        with pytest.raises(ContractError, match=said):
            await begin(open_session(store), 1)
    assert own_database.messages.count_documents({}) == 0


# The contract


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


class OtherEncoders(Message):
    class Settings(Message.Settings):
        bson_encoders: ClassVar[dict[Any, Any]] = {Decimal: str}


class MoreEncoders(Message):
    class Settings(Message.Settings):
        bson_encoders: ClassVar[dict[Any, Any]] = {**Message.Settings.bson_encoders, Decimal: str}


class ShowsToo(Session):
    api_fields: ClassVar = ("version",)


@pytest.mark.parametrize(
    ("models", "named"),
    [
        ({"user": int}, "DocumentModels.user must be a Beanie Document class"),
        ({"user": WithoutField}, "WithoutField lacks the field 'erased_at'"),
        ({"session": WrongType}, "WrongType.name must be"),
        ({"message": NeedsMore}, "NeedsMore.tenant needs a default"),
        ({"message": WithoutIndexes}, "WithoutIndexes lacks the index on session_id, branch, place"),
        ({"message": OtherEncoders}, "OtherEncoders.Settings.bson_encoders must hold those of Message"),
        ({"session": ShowsToo}, "api_fields names 'version', which is no field of its own"),
        ({"further": Order}, "further must be a tuple of classes, not <class"),
        ({"further": (int,)}, "further takes Beanie Document classes"),
        ({"fill": "tenant"}, "fill must be a function"),
        ({"fill": lambda document: document}, r"fill must take \(document, user, category\)"),
    ],
)
def test_what_breaks_the_contract_is_named_when_it_is_written(models: Any, named: str) -> None:
    with pytest.raises(ContractError, match=named):
        DocumentModels(**models)


def test_encoders_of_a_teams_own_may_be_added() -> None:
    assert DocumentModels(message=MoreEncoders).message is MoreEncoders
