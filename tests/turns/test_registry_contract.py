"""One contract for every registry: each test runs in memory, on MongoDB and on DynamoDB."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from local.aws import Aws
from local.ports import free_port
from omniagent import InMemorySessionManager, MongoBackendAdapter, MongoTurnRegistry, Query
from omniagent.aws.json_api import DYNAMODB, AwsJson, Credentials
from omniagent.aws.turn_table import DynamoRegistry
from omniagent.errors import ConfigurationError, InboxFull, RegistryMisconfigured, RegistryUnavailable
from omniagent.persistence.store import ConversationStore
from omniagent.session.manager import new_id
from omniagent.turns.lease import (
    ANSWER,
    ERASE,
    MAX_CHUNK_BYTES,
    MAX_INBOX_BYTES,
    REGENERATE,
    REPAIR,
    Claim,
    InboxMessage,
    Reader,
    Renewal,
    TurnRegistry,
)
from omniagent.turns.memory_registry import MemoryRegistry
from tests.fixtures.conversation import Clock, dynamodb_api, registry_of
from tests.fixtures.endpoint import Endpoint


@pytest.fixture(params=["memory", "mongodb", "dynamodb"])
async def registry(
    request: pytest.FixtureRequest, clock: Clock, registry_store: ConversationStore | None
) -> AsyncIterator[TurnRegistry]:
    async with registry_of(request, clock, registry_store) as registry:
        yield registry


@pytest.fixture
def claim() -> Claim:
    """A claim on a session that nobody else knows."""
    return Claim(f"user:{new_id()}", "turn-1", "message-1")


def next_claim(claim: Claim) -> Claim:
    return Claim(claim.session, "turn-2", "message-2")


async def test_a_free_session_is_taken(registry: TurnRegistry, claim: Claim) -> None:
    assert await registry.running(claim.session) is None
    assert await registry.claim(claim) is None
    running = await registry.running(claim.session)
    assert running is not None
    assert (running.claim, running.stopping, running.alive) == (claim, False, True)
    assert running.lease_left == pytest.approx(10.0)


async def test_a_held_session_is_refused_and_says_who_holds_it(
    registry: TurnRegistry, claim: Claim, clock: Clock
) -> None:
    await registry.claim(claim)
    clock.pass_by(4)
    held = await registry.claim(next_claim(claim))
    assert held is not None
    assert (held.claim, held.stopping) == (claim, False)
    assert held.lease_left == pytest.approx(6.0)


async def test_a_claim_that_is_sent_twice_is_still_ones_own(registry: TurnRegistry, claim: Claim) -> None:
    """An SDK sends a request again when its answer was lost on the way."""
    await registry.claim(claim)
    assert await registry.claim(claim) is None


async def test_a_session_whose_lease_has_run_out_is_taken_over(
    registry: TurnRegistry, claim: Claim, clock: Clock
) -> None:
    await registry.claim(claim)
    clock.pass_by(10)
    dead = await registry.running(claim.session)
    assert dead is not None
    assert not dead.alive
    assert await registry.claim(next_claim(claim)) is None
    running = await registry.running(claim.session)
    assert running is not None
    assert running.claim == next_claim(claim)


async def test_whoever_takes_a_session_hears_of_the_dead_one_that_held_it(
    registry: TurnRegistry, claim: Claim, clock: Clock
) -> None:
    dead: list[Claim] = []
    await registry.claim(claim, dead.append)
    second = replace(next_claim(claim), message_id="waits")
    await registry.claim(second, dead.append)
    assert dead == [], "nobody has died"
    await registry.post(claim, InboxMessage("waits", "Later."), 5)
    clock.pass_by(10)
    await registry.claim(second, dead.append)
    assert dead == [claim], "beside an inbox, too"
    clock.pass_by(10)
    third = Claim(claim.session, "turn-3", "waits", owner="another process", attempt=1)
    await registry.claim(third, dead.append)
    assert dead == [claim, second]
    await registry.release(third)
    assert await registry.claim(second, dead.append) is None
    assert dead == [claim, second], "a session that was given back, and is kept for its inbox, held nobody dead"


async def test_renewing_keeps_a_session(registry: TurnRegistry, claim: Claim, clock: Clock) -> None:
    await registry.claim(claim)
    for _ in range(3):
        clock.pass_by(6)
        assert await registry.renew(claim) == Renewal.RUNNING
    assert await registry.claim(next_claim(claim)) is not None


async def test_renewing_tells_of_a_stop(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    assert await registry.stop(claim.session)
    running = await registry.running(claim.session)
    assert running is not None
    assert running.stopping
    assert await registry.renew(claim) == Renewal.STOPPING
    assert await registry.stop(claim.session), "a second stop of the same turn is no error"


async def test_renewing_tells_of_a_loss(registry: TurnRegistry, claim: Claim, clock: Clock) -> None:
    await registry.claim(claim)
    clock.pass_by(10)
    await registry.claim(next_claim(claim))
    assert await registry.renew(claim) == Renewal.LOST
    assert await registry.renew(next_claim(claim)) == Renewal.RUNNING


async def test_renewing_what_is_gone_tells_of_a_loss(registry: TurnRegistry, claim: Claim) -> None:
    assert await registry.renew(claim) == Renewal.LOST
    assert await registry.running(claim.session) is None


async def test_a_lease_that_has_run_out_can_be_renewed_while_nobody_wants_the_session(
    registry: TurnRegistry, claim: Claim, clock: Clock
) -> None:
    await registry.claim(claim)
    clock.pass_by(60)
    assert await registry.renew(claim) == Renewal.RUNNING
    assert await registry.claim(next_claim(claim)) is not None


async def test_a_released_session_is_free(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    await registry.release(claim)
    assert await registry.running(claim.session) is None
    assert await registry.claim(next_claim(claim)) is None


async def test_a_stranger_cannot_release(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    await registry.release(next_claim(claim))
    running = await registry.running(claim.session)
    assert running is not None
    assert running.claim == claim


async def test_nothing_runs_so_nothing_can_be_stopped(registry: TurnRegistry, claim: Claim, clock: Clock) -> None:
    assert not await registry.stop(claim.session)
    await registry.claim(claim)
    clock.pass_by(10)
    assert not await registry.stop(claim.session)


async def test_sessions_do_not_touch_each_other(registry: TurnRegistry, claim: Claim) -> None:
    other = Claim(f"{claim.session}-other", claim.turn_id, claim.message_id)
    await registry.claim(claim)
    assert await registry.claim(other) is None
    await registry.stop(other.session)
    await registry.append(other, 0, b"other")
    assert await registry.renew(claim) == Renewal.RUNNING
    assert await registry.read(claim.session, claim.turn_id) == []
    await registry.erase(other.session)
    assert await registry.running(claim.session) is not None


async def test_chunks_come_back_in_order_from_any_number_on(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    chunks = [(number, f"chunk {number}".encode()) for number in range(12)]
    for number, frames in random.Random(1).sample(chunks, len(chunks)):
        await registry.append(claim, number, frames)
    assert await registry.read(claim.session, claim.turn_id) == chunks
    assert await registry.read(claim.session, claim.turn_id, 8) == chunks[9:]
    assert await registry.read(claim.session, claim.turn_id, 11) == []
    assert await registry.read(claim.session, "another turn") == []


async def test_a_chunk_that_is_written_twice_is_there_once(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    for _ in range(2):
        await registry.append(claim, 0, b"once")
    assert await registry.read(claim.session, claim.turn_id) == [(0, b"once")]


async def test_a_log_larger_than_one_page_comes_back_whole_and_is_erased_whole(
    registry: TurnRegistry, claim: Claim
) -> None:
    """DynamoDB reads at most 1 MB at a time."""
    await registry.claim(claim)
    noise = random.Random(1)
    chunks = [(number, noise.randbytes(MAX_CHUNK_BYTES)) for number in range(5)]
    for number, frames in chunks:
        await registry.append(claim, number, frames)
    assert await registry.read(claim.session, claim.turn_id) == chunks
    while not await registry.erase(claim.session, 2):
        pass
    assert await registry.read(claim.session, claim.turn_id) == []
    assert await registry.running(claim.session) is not None, "the claim stays"


async def test_the_log_of_a_dead_turn_outlives_the_claim_of_its_successor(
    registry: TurnRegistry, claim: Claim, clock: Clock
) -> None:
    """The successor repairs the dead turn from it."""
    await registry.claim(claim)
    await registry.append(claim, 0, b"said")
    clock.pass_by(10)
    await registry.claim(next_claim(claim))
    assert await registry.read(claim.session, claim.turn_id) == [(0, b"said")]


async def test_whoever_continues_a_dead_turn_shuts_its_process_out(
    registry: TurnRegistry, claim: Claim, clock: Clock
) -> None:
    """Both hold the same turn: only the token tells them apart."""
    await registry.claim(claim)
    await registry.append(claim, 0, b"said")
    heirs = [replace(claim, owner=owner, attempt=1) for owner in ("heir", "rival")]
    assert await registry.claim(heirs[0]) is not None, "alive"
    clock.pass_by(10)
    assert await registry.claim(heirs[0]) is None
    assert await registry.claim(heirs[0]) is None, "sent again"
    held = await registry.claim(heirs[1])
    assert held is not None
    assert held.claim == heirs[0]
    assert await registry.renew(claim) == Renewal.LOST
    assert await registry.renew(heirs[0]) == Renewal.RUNNING
    await registry.release(claim)
    assert await registry.running(claim.session) is not None


async def test_of_two_chunks_with_one_number_the_first_stays(registry: TurnRegistry, claim: Claim) -> None:
    heir = replace(claim, owner="heir")
    assert await registry.append(claim, 0, b"said")
    assert not await registry.append(heir, 0, b"said later")
    assert await registry.append(heir, 1, b"continued")
    assert await registry.append(heir, 1, b"continued"), "sent again"
    assert not await registry.append(claim, 1, b"said by the dead")
    assert await registry.read(claim.session, claim.turn_id) == [(0, b"said"), (1, b"continued")]


async def test_a_renewal_is_seen_by_others(registry: TurnRegistry, claim: Claim, clock: Clock) -> None:
    await registry.claim(claim)
    before = await registry.running(claim.session)
    assert await registry.running(claim.session) == before
    clock.pass_by(1)
    await registry.renew(claim)
    after = await registry.running(claim.session)
    assert before is not None
    assert after is not None
    assert after.lease_until == pytest.approx(before.lease_until + 1)


async def test_a_stop_can_name_the_message_or_the_answer_it_means(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    assert not await registry.stop(claim.session, "an earlier message")
    assert await registry.renew(claim) == Renewal.RUNNING
    for meant in (claim.message_id, claim.turn_id):
        assert await registry.stop(claim.session, meant)
    assert await registry.renew(claim) == Renewal.STOPPING


async def test_in_memory_the_logs_of_ended_turns_take_no_more_than_so_much_and_a_running_one_stays() -> None:
    registry = MemoryRegistry(kept_bytes=1000)
    running = Claim("running", "turn", "message")
    await registry.append(running, 0, b"x" * 2000)
    ended = [Claim(f"ended-{number}", "turn", "message") for number in range(10)]
    for claim in ended:
        await registry.claim(claim)
        await registry.append(claim, 0, b"x" * 300)
        await registry.release(claim)
    assert [bool(await registry.read(claim.session, "turn")) for claim in [running, *ended]] == (
        [True] + [False] * 7 + [True] * 3
    )


@pytest.mark.parametrize("purpose", [REPAIR, ERASE])
async def test_a_repair_and_an_erasure_are_no_turns_that_can_be_stopped(registry: TurnRegistry, purpose: str) -> None:
    claim = Claim(new_id(), "t", purpose)
    await registry.claim(claim)
    assert [await registry.stop(claim.session, meant) for meant in (None, purpose, "t")] == [False] * 3
    assert await registry.renew(claim) == Renewal.RUNNING


async def test_a_seized_session_is_lost_to_its_holder_whose_release_changes_nothing(
    registry: TurnRegistry, claim: Claim
) -> None:
    assert await registry.seize(claim) is None
    held = await registry.seize(next_claim(claim))
    assert held is not None
    assert (held.claim, held.alive) == (claim, True)
    assert await registry.renew(claim) == Renewal.LOST
    await registry.release(claim)
    running = await registry.running(claim.session)
    assert running is not None
    assert running.claim == next_claim(claim)


async def test_a_turn_that_is_let_go_can_be_taken_at_once_by_who_continues_it_with_its_inbox(
    registry: TurnRegistry, claim: Claim
) -> None:
    await registry.claim(claim)
    posted = InboxMessage("m2", "Next")
    await registry.post(claim, posted, 5)
    await registry.let_go(next_claim(claim))
    held = await registry.running(claim.session)
    assert held is not None
    assert held.alive, "a stranger cannot let it go"
    await registry.let_go(claim)
    held = await registry.running(claim.session)
    assert held is not None
    assert (held.claim, held.alive, held.inbox) == (claim, False, (posted,))
    assert held.is_looked_after(60.0)
    assert await registry.claim(replace(claim, owner="next", attempt=1)) is None
    assert await registry.renew(claim) == Renewal.LOST
    await registry.let_go(claim)
    taken = await registry.running(claim.session)
    assert taken is not None
    assert (taken.alive, taken.inbox) == (True, (posted,))


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


def messages(*ids: str, steers: bool = False) -> list[InboxMessage]:
    return [InboxMessage(each, f"Text of {each}: ü", steers=steers) for each in ids]


async def post(registry: TurnRegistry, claim: Claim, *ids: str) -> None:
    for message in messages(*ids):
        assert await registry.post(claim, message, 10)


async def waiting(registry: TurnRegistry, claim: Claim) -> list[str]:
    running = await registry.running(claim.session)
    return [] if running is None else [message.id for message in running.inbox]


def claim_of(claim: Claim, message_id: str) -> Claim:
    return Claim(claim.session, new_id(), message_id)


async def test_renewing_returns_the_inbox_in_order(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    steering = InboxMessage("b", "Shorter, please.", steers=True)
    await post(registry, claim, "a")
    assert await registry.post(claim, steering, 10)
    renewal = await registry.renew(claim)
    assert renewal == Renewal("running", (*messages("a"), steering))


async def test_a_message_is_posted_only_to_the_turn_that_holds_the_session(
    registry: TurnRegistry, claim: Claim
) -> None:
    [message] = messages("a")
    assert not await registry.post(claim, message, 10), "nobody holds it"
    await registry.claim(claim)
    assert not await registry.post(next_claim(claim), message, 10), "another turn holds it"
    await registry.release(claim)
    erasure = claim_of(claim, ERASE)
    await registry.claim(erasure)
    assert not await registry.post(erasure, message, 10), "the session is being deleted"
    await registry.release(erasure)
    assert await registry.running(claim.session) is None


async def test_a_message_that_is_posted_twice_is_in_the_inbox_once(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    await post(registry, claim, "a", "a", "b", "a")
    assert await waiting(registry, claim) == ["a", "b"]


async def test_an_inbox_takes_so_many_messages_and_characters(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    for message in messages("a", "b"):
        assert await registry.post(claim, message, 2)
    with pytest.raises(InboxFull):
        await registry.post(claim, messages("c")[0], 2)
    assert await registry.post(claim, messages("a")[0], 2), "it is there"
    other = claim_of(Claim(new_id(), "", ""), "m")
    await registry.claim(other)
    letters = "".join(random.Random(1).choices("".join(map(chr, range(0x4E00, 0x9FFF))), k=MAX_INBOX_BYTES // 3))
    assert await registry.post(other, InboxMessage("long", letters), 10), "one always fits"
    with pytest.raises(InboxFull):
        await registry.post(other, InboxMessage("too long", letters), 10)


async def test_posting_can_stop_the_turn_in_the_same_write(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    assert await registry.post(claim, messages("a")[0], 10, stop=True)
    assert (await registry.renew(claim)).state == "stopping"


async def test_a_session_whose_inbox_is_not_empty_is_kept_for_its_first_message(
    registry: TurnRegistry, claim: Claim
) -> None:
    await registry.claim(claim)
    await post(registry, claim, "a", "b")
    await registry.release(claim)
    held = await registry.claim(claim_of(claim, "somebody else's"))
    assert held is not None
    assert not held.alive
    assert [message.id for message in held.inbox] == ["a", "b"]
    assert await registry.claim(claim_of(claim, "b")) is not None
    first = claim_of(claim, "a")
    assert await registry.claim(replace(first, question=b"asked anew")) is not None
    assert await registry.claim(first) is None
    assert await registry.claim(first) is None, "sent again"
    running = await registry.running(claim.session)
    assert running is not None
    assert (running.claim, running.alive, running.stopping) == (first, True, False)
    await registry.release(first, ["a"])
    assert await waiting(registry, claim) == ["b"]
    last = claim_of(claim, "b")
    assert await registry.claim(last) is None
    await registry.release(last, ["b"])
    assert await registry.running(claim.session) is None


@pytest.mark.parametrize("kind", [ANSWER, REGENERATE])
async def test_what_is_about_the_latest_turn_goes_before_the_messages_and_a_release_tells_whether_any_are_left(
    registry: TurnRegistry, claim: Claim, kind: str
) -> None:
    await registry.claim(claim)
    message = InboxMessage("a", "Instead.", interrupts="an answer")
    assert await registry.post(claim, message, 10)
    assert await registry.release(claim), "one is left"
    going_on = claim_of(claim, f"{kind}an answer")
    assert await registry.claim(going_on) is None
    assert (await registry.renew(going_on)).inbox == (message,)
    assert await registry.release(going_on)
    first = claim_of(claim, "a")
    assert await registry.claim(first) is None
    assert not await registry.release(first, ["a"])
    assert not await registry.release(first)


async def test_what_was_posted_after_the_last_renewal_outlives_the_release(
    registry: TurnRegistry, claim: Claim
) -> None:
    await registry.claim(claim)
    await post(registry, claim, "a", "b", "c", "d")
    await registry.release(claim, ["a", "c", "unknown"])
    assert await waiting(registry, claim) == ["b", "d"]
    assert await registry.post(claim, messages("a")[0], 10), "it may be posted again"
    assert await waiting(registry, claim) == ["b", "d", "a"]


class SendsTwice(AwsJson):
    """Loses every first answer: the request is done, and sent again."""

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        await super().call(operation, **arguments)
        return await super().call(operation, **arguments)


async def test_a_release_whose_answer_is_lost_removes_no_other_message(
    aws: Aws, turns_table: str, claim: Claim, clock: Clock
) -> None:
    lossy = SendsTwice(DYNAMODB, endpoint=aws.endpoint, credentials=Credentials("local", "local"))
    registry, unlucky = (
        DynamoRegistry(turns_table, lease_seconds=10.0, api=api, clock=clock)
        for api in (dynamodb_api(aws.endpoint), lossy)
    )
    await registry.claim(claim)
    await post(registry, claim, "a", "b", "c")
    assert await unlucky.release(claim, ["a"])
    assert await waiting(registry, claim) == ["b", "c"]
    assert await registry.claim(claim_of(claim, "b")) is None
    await unlucky.aclose()
    await registry.aclose()


async def test_a_dead_turn_leaves_its_inbox_to_the_next_and_a_repair_leaves_it_alone(
    registry: TurnRegistry, claim: Claim, clock: Clock
) -> None:
    await registry.claim(claim)
    await post(registry, claim, "a")
    clock.pass_by(10)
    assert await registry.claim(claim_of(claim, "new")) is not None
    repair = claim_of(claim, REPAIR)
    assert await registry.claim(repair) is None
    await registry.release(repair)
    assert await waiting(registry, claim) == ["a"]
    assert (await registry.renew(claim)) == Renewal.LOST
    assert await registry.claim(claim_of(claim, "a")) is None


async def test_seizing_a_session_deletes_its_inbox(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    await post(registry, claim, "a")
    erasure = claim_of(claim, ERASE)
    await registry.seize(erasure)
    assert await waiting(registry, claim) == []
    await registry.release(erasure)
    assert await registry.running(claim.session) is None


async def test_a_stop_reaches_the_messages_that_wait(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    await post(registry, claim, "a", "b", "c")
    assert await registry.stop(claim.session, "b")
    renewal = await registry.renew(claim)
    assert renewal.state == "running"
    assert [message.stopped for message in renewal.inbox] == [False, True, False]
    assert not await registry.stop(claim.session, "d")
    await registry.release(claim)
    assert await registry.stop(claim.session), "nothing runs, but messages wait"
    running = await registry.running(claim.session)
    assert running is not None
    assert all(message.stopped for message in running.inbox)


async def test_a_stop_of_the_session_reaches_its_turn_and_its_inbox(registry: TurnRegistry, claim: Claim) -> None:
    await registry.claim(claim)
    await post(registry, claim, "a")
    assert await registry.stop(claim.session)
    renewal = await registry.renew(claim)
    assert (renewal.state, [message.stopped for message in renewal.inbox]) == ("stopping", [True])


async def test_of_many_claims_at_once_one_is_granted(registry: TurnRegistry, claim: Claim, clock: Clock) -> None:
    for _ in range(3):
        rivals = [Claim(claim.session, f"{new_id()}", f"m{number}") for number in range(8)]
        refusals = await asyncio.gather(*(registry.claim(rival) for rival in rivals))
        [winner] = [rival for rival, held in zip(rivals, refusals, strict=True) if held is None]
        assert {held.claim for held in refusals if held is not None} == {winner}
        clock.pass_by(10)


async def test_inboxes_that_nobody_empties_are_found(registry: TurnRegistry, clock: Clock) -> None:
    if isinstance(registry, DynamoRegistry):
        assert await registry.orphaned() == (), "it cannot tell: the run function's queue does"
        return
    claims = [Claim(f"user:{new_id()}", "t", f"m{number}") for number in range(4)]
    for each in claims:
        await registry.claim(each)
    for each in claims[:3]:
        await post(registry, each, "a")
    assert not {each.session for each in claims} & set(await registry.orphaned()), "their turns run"
    await registry.release(claims[0])
    clock.pass_by(10)
    await registry.renew(claims[1])
    first, second = sorted((claims[0].session, claims[2].session))
    assert [key for key in await registry.orphaned() if key in (first, second)] == [first, second]
    assert len(await registry.orphaned(limit=1)) == 1
    following = await registry.orphaned(first)
    assert first not in following
    assert second in following
    for each in claims[:3]:
        await registry.seize(each)  # or later tests would find them
        await registry.release(each)


async def question(registry: TurnRegistry, claim: Claim) -> bytes | None:
    running = await registry.running(claim.session)
    return None if running is None else running.claim.question


async def test_a_claim_carries_a_question_until_it_is_renewed_without_one(registry: TurnRegistry, claim: Claim) -> None:
    asking = replace(claim, question=b"\x00packed\xff")
    await registry.claim(asking)
    assert await question(registry, claim) == asking.question
    await registry.renew(asking)
    assert await question(registry, claim) == asking.question, "its turn has not begun"
    await registry.renew(claim)
    assert await question(registry, claim) == b""


async def test_the_question_of_a_dead_process_is_told_once_and_not_kept(
    registry: TurnRegistry, claim: Claim, clock: Clock
) -> None:
    dead: list[Claim] = []
    await registry.claim(replace(claim, question=b"asked"))
    clock.pass_by(10)
    assert await question(registry, claim) == b"asked"
    await registry.claim(next_claim(claim), dead.append)
    assert [each.question for each in dead] == [b"asked"]
    assert await question(registry, claim) == b""


async def test_a_session_that_is_given_back_or_seized_has_no_question(registry: TurnRegistry, claim: Claim) -> None:
    asking = replace(claim, question=b"asked")
    await registry.claim(asking)
    await post(registry, claim, "a", "b")
    assert await registry.release(asking, ["a"])
    assert await question(registry, claim) == b""
    answering = claim_of(claim, "b")
    await registry.claim(answering)
    await registry.release(answering, ["b"])
    await registry.claim(replace(next_claim(claim), question=b"asked"))
    assert await question(registry, claim) == b"asked"
    await registry.seize(next_claim(claim))
    assert await question(registry, claim) == b""


async def test_a_dead_question_goes_before_the_messages_that_came_after_it(
    registry: TurnRegistry, claim: Claim, clock: Clock
) -> None:
    await registry.claim(replace(claim, question=b"asked"))
    await post(registry, claim, "a")
    clock.pass_by(10)
    assert await registry.claim(next_claim(claim)) is not None, "it is kept for the inbox"
    again = replace(next_claim(claim), attempt=1, question=b"asked")
    assert await registry.claim(again) is None
    held = await registry.running(claim.session)
    assert held is not None
    assert (held.claim.question, [message.id for message in held.inbox]) == (b"asked", ["a"])
    assert await registry.claim(replace(claim, attempt=2, owner="b")) is not None, "it lives"
    clock.pass_by(10)
    assert await registry.claim(replace(claim, attempt=2, owner="b")) is None
    assert await question(registry, claim) == b"", "it has none of its own"


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


async def test_dead_questions_are_found(registry: TurnRegistry, clock: Clock) -> None:
    if isinstance(registry, DynamoRegistry):
        return  # the run function's queue finds them
    dead, begun, alive = [Claim(f"user:{new_id()}", "t", "m", question=b"asked") for _ in range(3)]
    for each in (dead, begun):
        await registry.claim(each)
    await registry.renew(replace(begun, question=b""))
    clock.pass_by(10)
    await registry.claim(alive)
    sessions = {each.session for each in (dead, begun, alive)}
    assert sessions & set(await registry.orphaned()) == {dead.session}
    await registry.seize(dead)  # or later tests would find it
    await registry.release(dead)


async def test_readers_whose_ids_begin_alike_are_counted_one_by_one(registry: TurnRegistry) -> None:
    user = new_id()
    readers = [Reader(f"conversation-{number}/m", user, f"{user}:conversation-{number}", 60.0) for number in range(3)]
    assert [len(await registry.enter(reader)) for reader in readers] == [1, 2, 3]
    await registry.leave(readers[0])
    assert len(await registry.enter(readers[1])) == 2


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
