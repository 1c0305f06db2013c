"""The contract of every registry for the messages in a session's inbox, and for the question that a claim carries."""

import random
from dataclasses import replace

import pytest

from omniagent.aws.turn_table import DynamoRegistry
from omniagent.errors import QueueFull
from omniagent.session.manager import new_id
from omniagent.turns.lease import (
    ANSWER,
    ERASE,
    MAX_INBOX_BYTES,
    REGENERATE,
    REPAIR,
    Claim,
    InboxMessage,
    Renewal,
    TurnRegistry,
)
from tests.fixtures.conversation import Clock
from tests.turns.registries import claim_of, messages, next_claim, post, waiting


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
    with pytest.raises(QueueFull):
        await registry.post(claim, messages("c")[0], 2)
    assert await registry.post(claim, messages("a")[0], 2), "it is there"
    other = claim_of(Claim(new_id(), "", ""), "m")
    await registry.claim(other)
    letters = "".join(random.Random(1).choices("".join(map(chr, range(0x4E00, 0x9FFF))), k=MAX_INBOX_BYTES // 3))
    assert await registry.post(other, InboxMessage("long", letters), 10), "one always fits"
    with pytest.raises(QueueFull):
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
async def test_claims_about_the_latest_turn_precede_queued_messages(
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
