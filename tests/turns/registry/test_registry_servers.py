"""What a registry does beyond the contract: errors of DynamoDB and MongoDB, TTLs, and the cost of a write."""

import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from local.aws import Aws
from local.ports import free_port
from omniagent import InMemorySessionManager, MongoBackendAdapter, MongoTurnRegistry, Query
from omniagent.aws.credentials import Credentials
from omniagent.aws.json_api import DYNAMODB, AwsJson
from omniagent.aws.turn_table import DynamoRegistry
from omniagent.errors import ConfigurationError, RegistryMisconfigured, RegistryUnavailable
from omniagent.session.manager import new_id
from omniagent.turns.lease import ANSWER, Claim, InboxMessage, TurnRegistry
from tests.fixtures.conversation import Clock, dynamodb_api
from tests.fixtures.endpoint import Endpoint
from tests.turns.registries import claim_of, next_claim, post, waiting

Use = Callable[[TurnRegistry, Claim], Awaitable[object]]
EVERY_USE: dict[str, Use] = {
    "claim": lambda registry, claim: registry.claim(claim),
    "renew": lambda registry, claim: registry.renew(claim),
    "seize": lambda registry, claim: registry.seize(claim),
    "post": lambda registry, claim: registry.post(claim, InboxMessage("m", "Text"), 10),
    "release": lambda registry, claim: registry.release(claim),
    "let_go": lambda registry, claim: registry.let_go(claim),
    "running": lambda registry, claim: registry.running(claim.session),
    "stop": lambda registry, claim: registry.stop(claim.session),
    "append": lambda registry, claim: registry.append(claim, 0, b""),
    "read": lambda registry, claim: registry.read(claim.session, claim.turn_id),
    "erase": lambda registry, claim: registry.erase(claim.session),
}


@pytest.mark.parametrize("use", EVERY_USE.values(), ids=EVERY_USE)
async def test_a_table_that_cannot_be_reached_is_unavailable(aws: Aws, claim: Claim, use: Use) -> None:
    nowhere = dynamodb_api(f"http://127.0.0.1:{free_port()}", timeout_seconds=1, attempts=1)
    with pytest.raises(RegistryUnavailable):
        await use(DynamoRegistry("turns", lease_seconds=10.0, api=nowhere, claim_patience_seconds=0), claim)


@pytest.mark.parametrize("use", EVERY_USE.values(), ids=EVERY_USE)
async def test_a_table_that_is_not_there_is_a_wrong_setting(aws: Aws, claim: Claim, use: Use) -> None:
    """It is unavailable as well: a turn that runs goes on without it."""
    assert issubclass(RegistryMisconfigured, RegistryUnavailable)
    with pytest.raises(ConfigurationError, match=r"no-such-table.*ResourceNotFoundException"):
        await use(DynamoRegistry("no-such-table", lease_seconds=10.0, api=dynamodb_api(aws.endpoint)), claim)


async def test_a_refusal_that_no_setting_explains_is_unavailable(claim: Claim) -> None:
    refusal = (400, {"__type": "com.amazonaws.dynamodb.v20120810#ReplicatedWriteConflictException"})
    with Endpoint(refusal) as endpoint:
        registry = DynamoRegistry("turns", lease_seconds=10.0, api=dynamodb_api(endpoint.url))
        with pytest.raises(RegistryUnavailable) as raised:
            await registry.claim(claim)
        await registry.aclose()
    assert not isinstance(raised.value, ConfigurationError)


async def test_a_claim_is_repeated_while_dynamodb_is_busy(claim: Claim) -> None:
    busy = (400, {"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException"})
    with Endpoint(*[busy] * 5, (200, {})) as endpoint:
        registry = DynamoRegistry(
            "turns", lease_seconds=10.0, api=dynamodb_api(endpoint.url), claim_patience_seconds=600
        )
        assert await registry.claim(claim) is None
        await registry.aclose()


async def test_a_claim_that_was_refused_for_a_holder_who_has_died_since_is_made_again(claim: Claim) -> None:
    """The process was frozen between the refusal and the look at it."""
    item = {
        **{name: {"S": name} for name in ("turn_id", "holder", "message_id")},
        "state": {"S": "running"},
        "lease_until": {"N": "1"},
        "inbox": {"L": [{"M": {"id": {"S": "m1"}, "text": {"B": "eJwDAAAAAAE="}, "stopped": {"BOOL": False}}}]},
    }
    refused = (400, {"__type": "ConditionalCheckFailedException", "Item": item})
    with Endpoint(refused, refused, refused, (200, {})) as endpoint:
        registry = DynamoRegistry("turns", lease_seconds=10.0, api=dynamodb_api(endpoint.url))
        assert await registry.claim(claim_of(claim, f"{ANSWER}an answer")) is None
        await registry.aclose()


async def test_a_table_that_does_not_answer_in_time_is_unavailable(aws: Aws, turns_table: str, claim: Claim) -> None:
    impatient = dynamodb_api(aws.endpoint, timeout_seconds=0.2, attempts=1)
    registry = DynamoRegistry(turns_table, lease_seconds=10.0, api=impatient, claim_patience_seconds=0)
    aws.pause()
    try:
        with pytest.raises(RegistryUnavailable):
            await registry.claim(claim)
    finally:
        aws.resume()


async def test_the_client_is_made_from_the_environment_when_none_is_given(
    aws: Aws, turns_table: str, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in aws.environment.items():
        monkeypatch.setenv(name, value)
    assert os.environ["AWS_ENDPOINT_URL"] == aws.endpoint
    registry = DynamoRegistry(turns_table, lease_seconds=10.0)
    assert await registry.claim(claim) is None
    assert await registry.running(claim.session) is not None


async def test_what_is_written_disappears_by_itself(aws: Aws, turns_table: str, claim: Claim, clock: Clock) -> None:
    """TTL is late, never early: a chunk is needed until somebody comes back to a dead turn."""
    registry = DynamoRegistry(turns_table, lease_seconds=10.0, api=dynamodb_api(aws.endpoint), clock=clock)
    await registry.claim(claim)
    await registry.append(claim, 0, b"said")
    items = aws.dynamodb.query(
        TableName=turns_table,
        KeyConditionExpression="session_id = :session",
        ExpressionAttributeValues={":session": {"S": claim.session}},
    )["Items"]
    lives = {item["item"]["S"].partition("#")[0]: int(item["expires_at"]["N"]) - clock.now for item in items}
    assert lives["turn"] >= 3600
    assert lives["chunk"] >= 90 * 24 * 3600


async def test_the_log_of_a_turn_that_could_not_be_stored_outlives_its_release(
    registry: TurnRegistry, claim: Claim
) -> None:
    """MongoDB was down at its end: the next turn repairs it from its log."""
    await registry.claim(claim)
    await registry.append(claim, 0, b"said")
    await registry.release(claim)
    await registry.claim(next_claim(claim))
    assert await registry.read(claim.session, claim.turn_id) == [(0, b"said")]


class SendsTwice(AwsJson):
    """Loses every first answer: the request is done, and sent again after what happens in between."""

    between: Callable[[], Awaitable[object]] | None = None

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        await super().call(operation, **arguments)
        if self.between is not None:
            await self.between()
        return await super().call(operation, **arguments)


@pytest.mark.parametrize("renews_late", [False, True])
async def test_a_release_whose_answer_is_lost_removes_no_other_message(
    aws: Aws, turns_table: str, claim: Claim, clock: Clock, renews_late: bool
) -> None:
    lossy = SendsTwice(DYNAMODB, endpoint=aws.endpoint, credentials=Credentials("local", "local"))
    registry, unlucky = (
        DynamoRegistry(turns_table, lease_seconds=10.0, api=api, clock=clock)
        for api in (dynamodb_api(aws.endpoint), lossy)
    )
    await registry.claim(claim)
    await post(registry, claim, "a", "b", "c")
    if renews_late:  # a renewal that was sent before the release
        lossy.between = lambda: registry.renew(claim)
    assert await unlucky.release(claim, ["a"])
    assert await waiting(registry, claim) == ["b", "c"]
    await unlucky.aclose()
    await registry.aclose()


async def test_a_claim_with_its_question_costs_one_write_unit(aws: Aws, turns_table: str, clock: Clock) -> None:
    """As the README's costs say. DynamoDB bills by the names and values of an item, in pieces of 1 KB."""
    registry = DynamoRegistry(turns_table, lease_seconds=10.0, api=dynamodb_api(aws.endpoint), clock=clock)
    session = InMemorySessionManager("user:ada.lovelace@example.com", new_id(), category="gold")
    words = random.Random(1)
    text = "".join(words.choice("etaoinshrdlu     ") for _ in range(600))
    query = Query(text, new_id())
    await registry.claim(Claim(session.key, new_id(), query.message_id, question=query.packed(session)))
    key = {"session_id": {"S": session.key}, "item": {"S": "turn"}}
    item = aws.dynamodb.get_item(TableName=turns_table, Key=key)["Item"]
    values = [(name, each) for name, value in item.items() for each in value.values()]
    size = sum(len(name) + len(each if isinstance(each, bytes) else str(each)) for name, each in values)
    assert "question" in item
    assert size < 1024


async def test_a_database_that_cannot_be_reached_is_unavailable(mongod: str, claim: Claim) -> None:
    async with MongoBackendAdapter(mongod, "unreachable") as store:
        registry = MongoTurnRegistry(store)
    with pytest.raises(RegistryUnavailable):
        await registry.running(claim.session)


async def test_a_message_that_waits_is_not_deleted_by_ttl(
    aws: Aws, turns_table: str, claim: Claim, clock: Clock
) -> None:
    registry = DynamoRegistry(turns_table, lease_seconds=10.0, api=dynamodb_api(aws.endpoint), clock=clock)
    key = {"session_id": {"S": claim.session}, "item": {"S": "turn"}}

    def life() -> float:
        item = aws.dynamodb.get_item(TableName=turns_table, Key=key)["Item"]
        return float(item["expires_at"]["N"]) - clock.now

    await registry.claim(claim)
    await post(registry, claim, "a")
    assert life() >= 90 * 24 * 3600
    await registry.renew(claim)
    assert life() >= 90 * 24 * 3600
    await registry.release(claim)
    assert life() >= 90 * 24 * 3600
    await registry.claim(claim_of(claim, "a"))
    assert life() >= 90 * 24 * 3600
