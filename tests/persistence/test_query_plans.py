"""Every query of a session and of the catalog is answered from an index, as MongoDB's own profiler saw it run."""

import inspect
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from omniagent.messages import CallRequest, Feedback, ToolPart
from omniagent.persistence.adapter import MongoBackendAdapter
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore, Cursor
from omniagent.session.ids import new_id
from omniagent.session.live import QueuedMessage
from omniagent.session.query import Query
from omniagent.settings import Settings
from omniagent.turns.state_events import Begin, End, Enqueue, Erase, PartReply, Reply, TakeOver, Wait
from tests.fixtures.profiler import profiled
from tests.persistence.turns import (
    again,
    answer_id,
    answered_again,
    apply,
    asking,
    converse,
    question,
    reply,
    reply_again,
    summary,
    tip,
    turn,
)

Json = dict[str, Any]
COLLECTIONS = ("users", "sessions", "messages", "summaries")
TURNS = 12
HEAD = {"version", "leaf", "branches", "turn", "queue", "name", "agent", "updated_at", "summary_basis", "erased_at"}
LATER = datetime(2100, 1, 1, tzinfo=UTC)
SMALL = Settings(context_max_turns=2, webhook_url="https://example.org")


@pytest.fixture(scope="module")
def watched(mongod: str) -> Iterator[Database[Json]]:
    """A database for the profiler."""
    with MongoClient[Json](mongod) as client:
        name = f"plans_{new_id()[:12]}"
        yield client[name]
        client.drop_database(name)


@pytest.fixture
async def store(mongod: str, watched: Database[Json]) -> AsyncIterator[ConversationStore]:
    async with MongoBackendAdapter(mongod, watched.name) as store:
        yield store


def session_of(store: ConversationStore, user: str, session_id: str) -> MongoSessionManager:
    return MongoSessionManager(store, user, session_id, settings=SMALL)


async def drive(store: ConversationStore, session: MongoSessionManager) -> set[str]:
    """Call everything that reads or writes, and return what was called."""
    catalog, key, user_id = Catalog(store), session.key, session.user_id
    request = CallRequest(id="r1", kind="approval", expires_at=LATER)
    waiting = reply(
        TURNS + 2, "waiting", session=session, parts=[ToolPart(call_id="c1", name="refund", input={}, request=request)]
    )
    other = session_of(store, session.user, "left")
    document, at, main = await catalog.get(key), await tip(session), reply(TURNS, session=session).place
    calls: list[Any] = [
        session.head(),
        session.load(),
        session.load(asking(3)),
        session.load(Query("New", "new", parent=answer_id(3, session))),
        session.find("nobody's"),
        session.find("question-3", answer_id(4, session), at=at),
        session.node(answer_id(3, session)),
        session.path(at),
        session.path(at, first=3, limit=3),
        session.path(main, limit=6),
        session.children("", *(question(number, session).node for number in range(1, TURNS))),
        session.end_of(question(2, session).place),
        session.end_of(main),
        session.find("question-2", at=at, anywhere="question-2"),
        session.tree(limit=5),
        session.tree(limit=5, after=main),
        apply(other, Enqueue(QueuedMessage("Next", "q"))),
        apply(session, Begin(turn(TURNS + 1, session))),
        session.busy_sessions(),
        apply(session, TakeOver("run")),
        apply(session, End("run", reply(TURNS + 1, session=session))),
        session.latest_summary(at),
        session.add_summary(summary(1, 2), at),
        session.add_summary(summary(3, 4), main),
        session.latest_summary(at),
        session.add_summary(summary(1, 4), main, draft=True),
        session.add_summary(summary(5, 6), main, draft=True),
        session.publish_drafts(main),
        session.rate(answer_id(2, session), Feedback(rating="up")),
        session.rename("trip", was=None),
        MongoSessionManager.of_key(store, key),
        catalog.create(session),
        catalog.create(session_of(store, session.user, "new")),
        catalog.list_page(user_id, limit=3),
        catalog.list_page(user_id, limit=3, search="trip"),
        catalog.snippets([key], "trip"),
        catalog.get(key),
        catalog.rename(key, "tour"),
        store.session_keys(user_id, limit=3),
        catalog.messages_page(document, limit=5),
        catalog.messages_page(document, limit=5, before=6),
        catalog.messages_page(document, limit=5, branch=answer_id(TURNS, session)),
        catalog.tree_page(document, limit=5),
        catalog.tree_page(document, limit=5, after="1.5"),
        catalog.latest_summary(document),
        catalog.summary_is_current(document, rebuild=True),
        catalog.note_summary_queued(key, rebuild=False),
        catalog.note_summary_done(key, rebuild=True),
        catalog.delete_message(key, "question-2"),
        apply(session, Begin(turn(TURNS + 2, session))),
        apply(session, Wait("run", waiting)),
        apply(session, PartReply(waiting)),
        catalog.find_request("r1"),
        catalog.unannounced(LATER, 3),
        catalog.note_announced(key, waiting.id, "evt_1"),
        catalog.waiting_page(user_id, limit=3),
        catalog.waiting_page(None, limit=3),
        catalog.waiting_page(None, limit=3, before=Cursor(datetime.now(UTC), "m").encode()),
        catalog.askers([key]),
        apply(session, Reply("run", waiting)),
        store.due(LATER, 3),
        catalog.live_turns(3),
        store.address_of(key),
        store.list_sessions(session.user, limit=2),
        apply(session, Erase()),
        store.erase_some(key, 4),
    ]
    called = {call.__name__ for call in calls} - {"apply"} | {"write", "set_feedback", "sibling"}
    for call in calls:
        await call
    page = await catalog.list_page(user_id, limit=2)
    await catalog.list_page(user_id, limit=2, before=page.before)
    deletions: list[Any] = [
        store.mark_idle(datetime(2020, 1, 1, tzinfo=UTC)),
        store.mark_user_erased(user_id, 2),
        store.marked_sessions(),
        store.marked_users(),
        store.user_is_erased(user_id),
        store.forget_user(user_id),
    ]
    for deletion in deletions:
        await deletion
    return called | {deletion.__name__ for deletion in deletions}


def public_methods(*classes: type) -> set[str]:
    return {
        name
        for cls in classes
        for name, _ in inspect.getmembers(cls, lambda member: inspect.isfunction(member) or inspect.ismethod(member))
        if not name.startswith("_")
    }


async def test_no_query_scans_a_collection_or_sorts_in_memory(
    store: ConversationStore, watched: Database[Json]
) -> None:
    people = ("user:ada", "user:bob", "user:eve")
    for user in people:
        for session_id in ("a", "b", "c", "d", "e"):
            is_driven = (user, session_id) == (people[0], "c")
            await converse(session_of(store, user, session_id), range(1, TURNS + 1) if is_driven else [1])
    # Branches from the main line, and one from another branch.
    driven = session_of(store, people[0], "c")
    for branch, number in enumerate((3, 5, 5, 7), 1):
        await answered_again(driven, number, branch=branch)
    nested = again(7, driven, branch=5)
    answer = replace(reply_again(7, driven, branch=5), lineage=(*nested.lineage, (4, 15)))
    await apply(driven, Begin(replace(nested, number=8, lineage=answer.lineage)))
    await apply(driven, End("run", replace(answer, turn_number=8)))
    with profiled(watched, planSummary={"$exists": True}) as operations:
        called = await drive(store, driven)

    helpers = {
        "now",
        "use_settings",
        "update_session",
        "fill",
        "ensure_user",
        "last_node",
        "addresses",
        "shown",
        "named",
    }
    assert called == public_methods(MongoSessionManager, Catalog, ConversationStore) - helpers
    seen = [operation for operation in operations if operation["ns"].partition(".")[2] in COLLECTIONS]
    assert {operation["op"] for operation in seen} >= {"query", "command", "update", "remove"}
    scanned = [o for o in seen if not o["planSummary"].startswith(("IXSCAN", "IDHACK", "COUNT_SCAN"))]
    assert [(o["planSummary"], o["command"]) for o in scanned] == []
    assert [o["command"] for o in seen if o.get("hasSortStage")] == []
    # What is read is what is asked for, however long the history is. Only a search reads what does not match.
    reads = [o for o in seen if o["op"] == "query" and "$and" not in o["command"]["filter"]]
    reads += [o for o in seen if "pipeline" in o["command"] and "$or" in o["command"]["pipeline"][0].get("$match", ())]
    assert [o["command"] for o in reads if o["keysExamined"] > o["nreturned"] + 8] == []


async def test_a_head_is_one_document_with_a_projection(store: ConversationStore, watched: Database[Json]) -> None:
    session = session_of(store, "user:head", "chat")
    await converse(session, [1, 2])
    with profiled(watched, op="query", ns=f"{watched.name}.sessions") as reads:
        await session.head()
    [read] = reads
    assert set(read["command"]["projection"]) == HEAD
    assert read["docsExamined"] == 1


async def test_of_an_id_that_many_siblings_share_few_keys_are_read(
    store: ConversationStore, watched: Database[Json]
) -> None:
    session, edits = session_of(store, "user:edits", "chat"), range(1, 21)
    await converse(session, range(1, 4))
    for branch in edits:
        edited = again(2, session, branch=branch)
        message = replace(question(2, session), node=f"{session.key}-{branch}", branch=branch, lineage=((0, 3),))
        await apply(session, Begin(replace(edited, message=message, question=message.node, lineage=((0, 3),))))
        await apply(session, End("run", reply_again(2, session, branch=branch)))
    with profiled(watched, ns=f"{watched.name}.messages") as reads:
        found = await session.find("question-2", at=reply(3, session=session).place, anywhere="question-2")
    assert [message.branch for message in found] == [0, edits[-1]], "on the path, and the newest"
    [read] = reads
    assert read["keysExamined"] <= 8
