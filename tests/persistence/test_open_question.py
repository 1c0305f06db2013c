"""A turn begins with one write: its question stands in the session's document until the turn ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from pymongo.database import Database

from local.aws import Aws
from local.model import OfflineModel
from omniagent import MongoBackendAdapter
from omniagent.aws.turn_table import DynamoRegistry
from omniagent.errors import InvalidRequest, NotFound, StorageConflict, TurnInProgress
from omniagent.messages import Feedback, TextPart
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.providers import LLMProvider
from omniagent.session.manager import SessionHead, SessionMessage, TurnStart
from tests.fixtures.conversation import QUICK, Conversation, dynamodb_api
from tests.fixtures.proxy import Proxy, proxy_to
from tests.fixtures.wire_formats import HttpWire, Message, MongoWire
from tests.persistence.turns import converse, open_session, reply

Json = dict[str, Any]
SECOND = TurnStart("answer-2", 2, "question-2", [TextPart(text="Where is Timbuktu?")], seen_turn_id="answer-1")


@pytest.fixture
async def session(store: ConversationStore) -> MongoSessionManager:
    return await asked(store)


async def asked(store: ConversationStore) -> MongoSessionManager:
    """A session whose second turn runs."""
    session = open_session(store)
    await converse(session, [1])
    await session.begin_turn(SECOND)
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
    """Take what was asked since the last time, without what the driver asks by itself."""
    names = [passage.message.name for passage in proxy.journal]
    proxy.journal.clear()
    return [name for name in names if name not in {"", "hello", "ismaster", "endSessions"}]


@pytest.fixture
async def chat(
    mongod: str, database: Database[Json], provider: LLMProvider, model: OfflineModel
) -> AsyncIterator[tuple[Proxy, Conversation]]:
    """A conversation, and the proxy before its MongoDB."""
    async with behind_proxy(mongod, database) as (proxy, store):
        settings = replace(QUICK, tick_seconds=60.0, lease_seconds=120.0)
        yield proxy, Conversation(store=store, provider=provider, model=model, database=database, settings=settings)


async def test_what_a_turn_asks_of_its_servers_before_its_first_byte_and_at_its_end(
    chat: tuple[Proxy, Conversation], aws: Aws, turns_table: str
) -> None:
    storage, conversation = chat
    async with proxy_to(aws.endpoint, HttpWire(), keeps_journal=True) as table:
        registry = DynamoRegistry(turns_table, lease_seconds=300.0, api=dynamodb_api(table.url))
        conversation = conversation.but(registry=registry)
        await conversation.ask("[echo:One.]")
        for proxy in (storage, table):
            proxy.journal.clear()
        stream = await conversation.start("[stall:first]")
        assert sorted(commands(storage)) == ["find", "find", "find", "find", "findAndModify", "update"]
        assert commands(table) == ["PutItem"]
        conversation.store.open_turns.shut_down()
        await stream.ended()
        assert commands(storage) == ["findAndModify", "insert", "commitTransaction", "update"]
        await registry.aclose()


async def test_the_question_of_a_running_turn_is_read_like_every_message(
    store: ConversationStore, database: Database[Json], session: MongoSessionManager
) -> None:
    async def seen() -> tuple[object, ...]:
        state, catalog = await session.load("question-2"), Catalog(store)
        page = await catalog.messages_page(await catalog.get(session.key), limit=2)
        listed = next(message for message in page.items if message.role == "user")
        found = await catalog.list_page(session.user_id, limit=5, search="timbuktu")
        asked = state.turns[-1].messages[0]
        return state.question, state.earlier, await session.find("question-2"), asked, listed, len(found.items)

    assert database.messages.count_documents({"session_id": session.key}) == 2
    before = await seen()
    await session.finish_turn(reply(2))
    assert await seen() == before
    assert isinstance(before[0], SessionMessage)
    assert before[0].text == "Where is Timbuktu?"
    assert database.messages.count_documents({"session_id": session.key}) == 4
    document = database.sessions.find_one({"_id": session.key})
    assert document is not None
    assert document["open_question"] is None


async def test_pages_of_messages_end_with_the_question_of_the_running_turn(
    store: ConversationStore, session: MongoSessionManager
) -> None:
    catalog = Catalog(store)
    document = await catalog.get(session.key)
    newest = await catalog.messages_page(document, limit=2)
    assert [message.client_message_id for message in newest.items] == ["question-2"]
    assert newest.before is not None
    older = await catalog.messages_page(document, limit=2, before=int(newest.before))
    assert [message.client_message_id for message in older.items] == ["question-1", "answer-1"]
    await session.finish_turn(reply(2))
    moved = await catalog.messages_page(document, limit=9)
    assert [message.client_message_id for message in moved.items] == ["question-1", "answer-1", "question-2"]


async def test_only_one_of_two_turns_begins_and_the_same_one_may_be_told_twice(session: MongoSessionManager) -> None:
    await session.begin_turn(SECOND)  # its outcome was unknown
    with pytest.raises(StorageConflict):
        await session.begin_turn(replace(SECOND, turn_id="another", message_id="another"))
    assert (await session.load()).question == await session.find("question-2")


async def test_a_repair_moves_the_question_and_its_owner_may_still_finish(
    database: Database[Json], session: MongoSessionManager
) -> None:
    cut = SessionMessage("answer-2", "assistant", 0, [TextPart(text="It is")], "interrupted")
    assert await session.repair_turn(cut) is not None
    await session.finish_turn(reply(2))
    found = database.messages.find({"session_id": session.key, "turn_number": 2}).sort("role")
    assert [(message["role"], message["status"]) for message in found] == [
        ("assistant", "complete"),
        ("user", "complete"),
    ]


async def test_the_question_of_a_running_turn_is_neither_deleted_nor_rated(
    store: ConversationStore, session: MongoSessionManager
) -> None:
    with pytest.raises(TurnInProgress):
        await Catalog(store).delete_message(session.key, "question-2")
    with pytest.raises(InvalidRequest):
        await session.rate("question-2", Feedback(rating="up"))
    with pytest.raises(NotFound):
        await session.rate("question-3", Feedback(rating="up"))
    await session.finish_turn(reply(2))
    await Catalog(store).delete_message(session.key, "question-2")
    assert await session.find("question-2") is None


async def test_a_deleted_session_holds_no_question(database: Database[Json], session: MongoSessionManager) -> None:
    assert await session.mark_erased()
    document = database.sessions.find_one({"_id": session.key})
    assert document is not None
    assert document["open_question"] is None


async def test_a_question_that_is_moved_while_the_session_is_read_is_found(
    mongod: str, database: Database[Json]
) -> None:
    def by_id(message: Message) -> bool:
        return message.name == "find" and "$or" in message.body["filter"]

    def head(message: Message) -> bool:
        return message.name == "find" and message.body["find"] == "sessions"

    async with behind_proxy(mongod, database) as (proxy, store):
        session = await asked(store)
        async with proxy.holding(by_id, "answer") as looked_for, proxy.holding(head) as head_asked:
            loading = asyncio.create_task(session.load("question-2"))
            await looked_for.reached()
            await head_asked.reached()
            await session.finish_turn(reply(2))
        state = await loading
    assert state.head == SessionHead(2)
    assert state.earlier is not None
    assert state.earlier.id == "question-2"
