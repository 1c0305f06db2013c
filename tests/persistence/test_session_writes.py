"""What a turn leaves in MongoDB, and asks of it, beyond what every session manager promises."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.database import Database

from local.aws import Aws
from local.model import OfflineModel
from omniagent import MongoBackendAdapter
from omniagent.aws.turn_table import DynamoRegistry
from omniagent.errors import TurnInProgress
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.documents import DocumentModels, Message
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.mongodb import APP_NAME
from omniagent.persistence.store import ConversationStore
from omniagent.providers import LLMProvider
from omniagent.session.ids import new_id
from omniagent.session.live import SessionHead
from omniagent.session.manager import SessionManager
from omniagent.session.query import Query
from omniagent.turns.state import transition
from omniagent.turns.state_events import Begin, End, Erase, Event, Reply, TakeOver, Wait
from tests.fixtures.conversation import QUICK, Conversation, dynamodb_api
from tests.fixtures.proxy import Proxy, proxy_to
from tests.fixtures.wire_formats import HttpWire, MongoWire
from tests.fixtures.wire_formats import Message as WireMessage
from tests.persistence.turns import (
    NOW,
    answer_id,
    apply,
    asking,
    begin,
    converse,
    end,
    open_session,
    path_ids,
    question,
    reply,
    turn,
)

Json = dict[str, Any]


@pytest.fixture
async def session(store: ConversationStore) -> MongoSessionManager:
    """A session whose second turn runs."""
    session = open_session(store)
    await converse(session, [1])
    await begin(session, 2)
    return session


@asynccontextmanager
async def behind_proxy(mongod: str, database: Database[Json]) -> AsyncIterator[tuple[Proxy, ConversationStore]]:
    """A store whose every command passes a proxy."""
    direct = mongod.partition("?")[0] + "?directConnection=true"
    async with (
        proxy_to(direct, MongoWire(), keeps_journal=True) as proxy,
        MongoBackendAdapter(proxy.url, database.name) as store,
    ):
        yield proxy, store


def commands(proxy: Proxy) -> list[str]:
    """Take the commands since the last time, without those that the driver sends by itself."""
    names = [passage.message.name for passage in proxy.journal]
    proxy.journal.clear()
    return [name for name in names if name not in {"", "hello", "ismaster", "endSessions"}]


async def test_a_turn_sends_few_commands_before_its_first_byte_and_at_its_end(  # noqa: PLR0917 - fixtures
    mongod: str, database: Database[Json], provider: LLMProvider, model: OfflineModel, aws: Aws, turns_table: str
) -> None:
    settings = replace(QUICK, tick_seconds=60.0, lease_seconds=120.0)
    async with (
        behind_proxy(mongod, database) as (storage, store),
        proxy_to(aws.endpoint, HttpWire(), keeps_journal=True) as table,
    ):
        registry = DynamoRegistry(turns_table, api=dynamodb_api(table.url))
        conversation = Conversation(
            store=store, provider=provider, model=model, database=database, settings=settings, registry=registry
        )
        await (await conversation.start("[echo:One.]")).ended()
        await (await conversation.start(Query(regenerate=True))).ended()  # a session with a branch
        for proxy in (storage, table):
            proxy.journal.clear()
        stream = await conversation.start("[stall:first]")
        assert sorted(commands(storage)) == ["aggregate", "find", "find", "find", "find", "update"]
        assert commands(table) == []
        store.open_turns.shut_down()
        await stream.ended()
        assert commands(storage) == ["findAndModify", "insert", "commitTransaction"]
        assert commands(table) == ["PutItem"], "the journal; with a budget, the counter as well"
        await registry.aclose()


class Tagged(Message):
    tag: str = ""


async def test_fields_of_a_team_stay_in_the_question_and_in_an_answer_that_goes_on(
    mongod: str, own_database: Database[Json]
) -> None:
    tags = iter(["question", "answer"])

    def fill(document: Any, _user: str, _category: str | None) -> None:
        if isinstance(document, Tagged):
            document.tag = next(tags)

    models = DocumentModels(message=Tagged, fill=fill)
    async with MongoBackendAdapter(mongod, own_database.name, documents=models) as store:
        session = open_session(store)
        await begin(session, 1)
        own_database.sessions.update_one({}, {"$set": {"turn.message.extra": {"$numberDecimal": "x"}}})
        await apply(session, TakeOver("run-2"))
        await apply(session, Wait("run-2", reply(1, "waiting", session=session)))
        await apply(session, Reply("run-3", reply(1, "waiting", session=session)))
        await apply(session, End("run-3", reply(1, session=session)))
    stored = list(own_database.messages.find().sort("role", -1))
    assert [(each["role"], each["tag"]) for each in stored] == [("user", "question"), ("assistant", "answer")]
    assert stored[0]["extra"] == {"$numberDecimal": "x"}, "moved as it is stored, not decoded and encoded again"


async def test_an_answer_that_ends_or_waits_owes_an_event_to_the_webhook(store: ConversationStore) -> None:
    settings = replace(QUICK, webhook_url="https://example.org")
    session, catalog = MongoSessionManager(store, f"user:{new_id()}", settings=settings), Catalog(store)

    async def owed() -> list[str]:
        found = await catalog.unannounced(NOW.replace(year=2100), 1000)
        return [answer.status for key, answer in found if key == session.key]

    await begin(session, 1)
    await apply(session, Wait("run", reply(1, "waiting", session=session)))
    assert await owed() == ["waiting"]
    await catalog.note_announced(session.key, answer_id(1, session), "evt_1")
    await apply(session, Reply("run-2", reply(1, "waiting", session=session)))
    assert await owed() == [], "a reply is no event"
    await apply(session, End("run-2", reply(1, session=session)))
    assert await owed() == ["complete"]


async def test_the_question_of_a_running_turn_is_listed_and_found_by_its_text(
    store: ConversationStore, session: MongoSessionManager
) -> None:
    catalog = Catalog(store)
    document = await catalog.get(session.key)
    newest = await catalog.messages_page(document, limit=2)
    assert [shown.id for shown in newest.items] == ["question-2"]
    assert newest.before is not None
    older = await catalog.messages_page(document, limit=2, before=int(newest.before))
    assert [shown.id for shown in older.items] == ["question-1", answer_id(1, session)]
    found = await catalog.list_page(session.user_id, limit=5, search="question 2")
    assert len(found.items) == 1
    with pytest.raises(TurnInProgress):
        await catalog.delete_message(session.key, "question-2")
    await end(session, 2)
    moved = await catalog.messages_page(document, limit=9)
    assert [shown.id for shown in moved.items] == ["question-1", answer_id(1, session), "question-2"]
    await catalog.delete_message(session.key, "question-2")
    assert await path_ids(session) == ["question-1", answer_id(1, session), answer_id(2, session)]


async def test_a_question_that_is_moved_while_the_session_is_read_is_found(
    mongod: str, database: Database[Json]
) -> None:
    """The live state was read before the answer was stored, and the history after it."""

    def path(message: WireMessage) -> bool:
        return message.name == "find" and message.body["find"] == "messages" and "sort" in message.body

    def by_id(message: WireMessage) -> bool:
        return message.name == "aggregate" and message.body["aggregate"] == "messages"

    async with behind_proxy(mongod, database) as (proxy, store):
        session = open_session(store)
        await converse(session, [1])
        running = await begin(session, 2)
        async with proxy.holding(by_id) as looked_for, proxy.holding(path) as window:
            loading = asyncio.create_task(session.load(asking(2)))
            await looked_for.reached()
            await window.reached()
            assert await session.write(transition(running, End("run", reply(2, session=session)), NOW))
        state = await loading
    assert (state.head, state.earlier) == (running, question(2, session))
    assert [turn.number for turn in state.turns] == [1, 2]


@pytest.mark.parametrize(
    "event", [lambda s: Begin(turn(1, s)), lambda _: TakeOver("run-2"), lambda s: End("run", reply(1, session=s))]
)
async def test_a_write_whose_reply_is_lost_is_applied_once(
    mongod: str, database: Database[Json], event: Callable[[SessionManager], Event]
) -> None:
    def write(message: WireMessage) -> bool:
        return message.name in {"insert", "update", "commitTransaction"}

    async with behind_proxy(mongod, database) as (proxy, store):
        session = open_session(store)
        step = event(session)
        head = SessionHead() if isinstance(step, Begin) else await begin(session, 1)
        change = transition(head, step, NOW)
        async with proxy.holding(write, "answer") as held:
            writing = asyncio.create_task(session.write(change))
            await held.reached()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        assert await session.write(change)
        assert await session.head() == change.after
    assert database.messages.count_documents({"session_id": session.key}) == len(change.inserted)


@pytest.mark.parametrize("write", ["rename", "take over", "summarize"])
async def test_the_transaction_of_a_dead_process_blocks_nobody(
    mongod: str, session: MongoSessionManager, database: Database[Json], write: str
) -> None:
    async with AsyncMongoClient[Json](mongod, appname=APP_NAME) as dead, dead.start_session() as transaction:
        await transaction.start_transaction()
        await dead[database.name].sessions.update_one(
            {"_id": session.key}, {"$set": {"fence": "dead"}}, session=transaction
        )
        # Nobody goes on with it: whoever meets its lock first ends it when it has been idle for long enough.
        if write == "rename":
            assert await session.rename("Trip", was=None)
            await apply(session, Erase())
        elif write == "take over":  # as after a process that died in the commit of its answer
            await apply(session, TakeOver("run-2"))
            await apply(session, End("run-2", reply(2, session=session)))
        else:
            assert await Catalog(session.store).note_summary_queued(session.key, rebuild=False)
        await transaction.end_session()
