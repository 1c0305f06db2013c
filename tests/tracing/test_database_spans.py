"""Every operation on MongoDB and DynamoDB is a span that says what it did, on which collection or table."""

from datetime import UTC, datetime

from opentelemetry.trace import StatusCode

from omniagent.aws.client import DYNAMODB, AwsJson, CredentialCache
from omniagent.aws.turn_table import DynamoRegistry
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.session.ids import new_id
from omniagent.session.live import QueuedMessage
from omniagent.session.query import Query
from omniagent.session.window import RollingSummary
from omniagent.turns.registry import Chunk
from omniagent.turns.state import transition
from omniagent.turns.state_events import Enqueue
from tests.fixtures.http_server import Endpoint
from tests.fixtures.live_turns import begin_turn, end_turn

from .conftest import Recorded


async def test_database_spans_carry_the_operation_and_the_collection(
    store: ConversationStore, recorded: Recorded
) -> None:
    session, catalog = MongoSessionManager(store, f"user:{new_id()}"), Catalog(store)
    for message_id in ("m1", "m2"):
        await end_turn(session, await begin_turn(session, message_id=message_id))
    head = await session.head()
    assert head is not None
    await session.add_summary(RollingSummary("They met.", 1, 1, 1), head.tip)
    assert "mongodb.add_summary" in recorded.names
    recorded.forget()
    await session.write(transition(head, Enqueue(QueuedMessage("And now?", "m3")), session.now()))
    await session.load(Query("And now?", "m3"))
    await catalog.list_page(session.user_id, limit=5)
    await session.store.erase_some(session.key)
    collections = {
        "write": "sessions",
        "head": "sessions",
        "find": "messages",
        "path": "messages",
        "latest_summary": "summaries",
        "list_sessions": "sessions",
        "erase_some": "sessions",
    }
    assert set(recorded.names) == {f"mongodb.{operation}" for operation in collections}
    for operation, collection in collections.items():
        assert recorded.attributes(f"mongodb.{operation}") == {
            "db.system.name": "mongodb",
            "db.operation.name": operation,
            "db.collection.name": collection,
        }


async def test_operations_on_the_table_of_turns_are_spans_and_a_lost_condition_is_no_error(recorded: Recorded) -> None:
    lost = (400, {"__type": "ConditionalCheckFailedException"})
    with Endpoint((200, {}), lost) as endpoint:
        api = AwsJson(
            DYNAMODB,
            endpoint=endpoint.url,
            credentials=CredentialCache({"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}),
        )
        registry = DynamoRegistry("turns", api=api)
        await registry.signal("session", "turn", stop=True)
        assert not await registry.append("session", "turn", Chunk(0, "run", datetime.now(UTC), b"{}"))
        await registry.aclose()
    assert recorded.names == ["aws.dynamodb.signal", "aws.dynamodb.append"]
    for operation in ("signal", "append"):
        name = f"aws.dynamodb.{operation}"
        assert recorded[name].status.status_code is StatusCode.UNSET
        assert recorded.attributes(name) == {
            "db.system.name": "aws.dynamodb",
            "db.operation.name": operation,
            "db.collection.name": "turns",
        }
