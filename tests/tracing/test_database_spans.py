"""Every operation on MongoDB is a span that says what it did, on which collection."""

from omniagent.persistence.catalog import Catalog
from omniagent.persistence.store import ConversationStore
from tests.persistence.turns import converse, erase, open_session, summary

from .conftest import Recorded


async def test_database_spans_carry_the_operation_and_the_collection(
    store: ConversationStore, recorded: Recorded
) -> None:
    session, catalog = open_session(store), Catalog(store)
    await session.admit(5)
    await converse(session, [1])
    await session.load()
    await session.add_summary(summary(1, 1))
    await catalog.list_page(session.user_id, limit=5)
    await erase(catalog, session.key)
    collections = {
        "admit": "users",
        "begin_turn": "messages",
        "finish_turn": "messages",
        "load": "messages",
        "head": "sessions",
        "latest_summary": "summaries",
        "add_summary": "summaries",
        "list_sessions": "sessions",
        "mark_erased": "sessions",
        "erase_some": "sessions",
    }
    assert set(recorded.names) == {f"mongodb.{operation}" for operation in collections}
    for operation, collection in collections.items():
        assert recorded.attributes(f"mongodb.{operation}") == {
            "db.system.name": "mongodb",
            "db.operation.name": operation,
            "db.collection.name": collection,
        }
    assert recorded.parent("mongodb.head") == "mongodb.load"
