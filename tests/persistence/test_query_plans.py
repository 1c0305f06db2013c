"""Every query of the store and the catalog is answered from an index, as MongoDB's own profiler saw it run."""

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from omniagent import MongoBackendAdapter
from omniagent.messages import TextPart
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.documents import Summary
from omniagent.persistence.store import ConversationStore, Owner, TurnEnd, TurnStart
from omniagent.session.identity import new_id, session_key, user_id_of

Json = dict[str, Any]
COLLECTIONS = ("users", "sessions", "messages", "summaries")
TURNS = 12
PARTS = [TextPart(text="Hello")]


@pytest.fixture(scope="module")
def profiled(mongod: str) -> Iterator[Database[Json]]:
    """A database whose every operation is written down by the server."""
    with MongoClient[Json](mongod) as client:
        name = f"plans_{new_id()[:12]}"
        yield client[name]
        client.drop_database(name)


@pytest.fixture
async def store(mongod: str, profiled: Database[Json]) -> AsyncIterator[ConversationStore]:
    adapter = MongoBackendAdapter(mongod, profiled.name)
    yield await adapter.initialize()
    await adapter.shutdown()


async def converse(store: ConversationStore, owner: Owner, session_id: str) -> str:
    key = session_key(owner.user_id, session_id)
    for number in range(1, TURNS + 1):
        turn = f"{session_id}-{number}"
        await store.begin_turn(TurnStart(owner, key, turn, number, f"q{number}", PARTS))
        await store.finish_turn(TurnEnd(key, turn, number, PARTS, "complete"))
    return key


def summary(key: str, first: int, last: int) -> Summary:
    return Summary(session_id=key, content="So far.", token_count=2, start_turn_number=first, end_turn_number=last)


async def drive(store: ConversationStore, owner: Owner, key: str) -> set[str]:
    """Call everything that reads or writes, and return what was called."""
    catalog = Catalog(store)
    calls: list[Any] = [
        store.snapshot(key, turns=5, message_id="q3"),
        store.answer(key, 3),
        store.begin_turn(TurnStart(owner, key, "running", TURNS + 1, "new", PARTS)),
        store.running_turns(owner.user_id, at_most=5),
        store.repair_turn(key, turn_id="running", parts=PARTS),
        store.restart_turn(key, turn_id="again", turn_number=TURNS + 1),
        store.finish_turn(TurnEnd(key, "again", TURNS + 1, PARTS, "complete")),
        catalog.create(owner, key),
        catalog.list_page(owner.user_id, limit=5),
        catalog.list_page(owner.user_id, limit=5, search="trip"),
        catalog.get(key),
        catalog.rename(key, "trip"),
        catalog.rename_unchanged(key, "tour", was="trip"),
        catalog.recent_keys(owner.user_id),
        catalog.messages_page(key, limit=5),
        catalog.messages_page(key, limit=5, before=6),
        catalog.latest_summary(key),
        catalog.add_summary(summary(key, 1, 2)),
        catalog.add_summary(summary(key, 3, 4)),
        catalog.replace_summaries(key, summary(key, 1, 5)),
        catalog.delete_message(key, "q2"),
    ]
    called = {call.__name__ for call in calls}
    for call in calls:
        await call
    page = await catalog.list_page(owner.user_id, limit=2)
    await catalog.list_page(owner.user_id, limit=2, before=page.before)
    assert [found async for found in catalog.turns_between(key, 3, 9, at_a_time=3)]
    await catalog.delete(key)
    await catalog.delete_user(owner.user_id)
    return called | {"turns_between", "delete", "delete_user"}


def public_methods(*classes: type) -> set[str]:
    return {
        name
        for cls in classes
        for name, _ in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and name != "transaction"
    }


async def test_no_query_scans_a_collection_or_sorts_in_memory(
    store: ConversationStore, profiled: Database[Json]
) -> None:
    people = [Owner(user_id_of(name), name) for name in ("user:ada", "user:bob", "user:eve")]
    for owner in people:
        for session_id in ("a", "b", "c", "d", "e"):
            await converse(store, owner, session_id)
    profiled.command("profile", 2)
    called = await drive(store, people[0], session_key(people[0].user_id, "c"))
    profiled.command("profile", 0)

    assert called == public_methods(ConversationStore, Catalog)
    seen = [
        operation
        for operation in profiled["system.profile"].find({"planSummary": {"$exists": True}})
        if operation["ns"].partition(".")[2] in COLLECTIONS
    ]
    assert {operation["op"] for operation in seen} >= {"query", "command", "update", "remove"}
    scanned = [o for o in seen if not o["planSummary"].startswith(("IXSCAN", "IDHACK", "COUNT_SCAN"))]
    assert [(o["planSummary"], o["command"]) for o in scanned] == []
    assert [o["command"] for o in seen if o.get("hasSortStage")] == []
    # What is read is what is asked for, however long the history is. Only a search reads names that do not match.
    reads = [o for o in seen if o["op"] == "query" and "name" not in o["command"]["filter"]]
    assert [o["command"] for o in reads if o["keysExamined"] > o["nreturned"] + 4] == []
