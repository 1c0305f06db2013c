"""Every operation on MongoDB and DynamoDB is a span that says what it did, on which collection or table."""

from opentelemetry.trace import StatusCode

from omniagent.aws.credentials import Credentials
from omniagent.aws.json_api import DYNAMODB, AwsJson
from omniagent.aws.turn_table import DynamoRegistry
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.store import ConversationStore
from omniagent.turns.lease import Claim, Renewal
from tests.fixtures.endpoint import Endpoint
from tests.persistence.turns import converse, erase, open_session, summary

from .conftest import Recorded


async def test_database_spans_carry_the_operation_and_the_collection(
    store: ConversationStore, recorded: Recorded
) -> None:
    session, catalog = open_session(store), Catalog(store)
    await session.admit(5, "t")
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


async def test_operations_on_the_table_of_turns_are_spans_and_a_lost_condition_is_no_error(recorded: Recorded) -> None:
    lost = (400, {"__type": "ConditionalCheckFailedException"})
    with Endpoint((200, {}), lost) as endpoint:
        api = AwsJson(DYNAMODB, endpoint=endpoint.url, credentials=Credentials("key", "secret"))
        registry = DynamoRegistry("turns", lease_seconds=10.0, api=api)
        claim = Claim("session", "turn", "message")
        await registry.claim(claim)
        assert await registry.renew(claim) == Renewal.LOST
        await registry.aclose()
    assert recorded.names == ["aws.dynamodb.claim", "aws.dynamodb.renew"]
    for operation in ("claim", "renew"):
        name = f"aws.dynamodb.{operation}"
        assert recorded[name].status.status_code is StatusCode.UNSET
        assert recorded.attributes(name) == {
            "db.system.name": "aws.dynamodb",
            "db.operation.name": operation,
            "db.collection.name": "turns",
        }
