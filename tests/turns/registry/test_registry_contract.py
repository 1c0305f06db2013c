"""One contract for every registry: each test runs in memory, on MongoDB and on DynamoDB."""

import asyncio
import random
from dataclasses import replace

import pytest

from omniagent.session.manager import new_id
from omniagent.turns.lease import ERASE, MAX_CHUNK_BYTES, REPAIR, Claim, InboxMessage, Reader, Renewal, TurnRegistry
from omniagent.turns.memory_registry import MemoryRegistry
from tests.fixtures.conversation import Clock
from tests.turns.registries import next_claim


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


@pytest.mark.parametrize("has_inbox", [False, True])
async def test_a_stopped_turn_is_taken_over_with_its_stop(
    registry: TurnRegistry, claim: Claim, clock: Clock, has_inbox: bool
) -> None:
    await registry.claim(claim)
    if has_inbox:
        await registry.post(claim, InboxMessage("m", "Next"), 5)
    clock.pass_by(10)
    later = replace(claim, owner="later", attempt=1, is_stopped=True)
    assert await registry.claim(later) is None
    running = await registry.running(claim.session)
    assert running is not None
    assert (running.claim, running.stopping) == (later, True)
    assert (await registry.renew(later)).state == "stopping"


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


async def test_memory_of_ended_turns_logs_is_bounded_and_running_logs_stay() -> None:
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


async def test_a_released_turn_can_be_claimed_at_once_with_its_inbox(registry: TurnRegistry, claim: Claim) -> None:
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


async def test_of_many_claims_at_once_one_is_granted(registry: TurnRegistry, claim: Claim, clock: Clock) -> None:
    for _ in range(3):
        rivals = [Claim(claim.session, f"{new_id()}", f"m{number}") for number in range(8)]
        refusals = await asyncio.gather(*(registry.claim(rival) for rival in rivals))
        [winner] = [rival for rival, held in zip(rivals, refusals, strict=True) if held is None]
        assert {held.claim for held in refusals if held is not None} == {winner}
        clock.pass_by(10)


async def test_readers_whose_ids_begin_alike_are_counted_one_by_one(registry: TurnRegistry) -> None:
    user = new_id()
    readers = [Reader(f"conversation-{number}/m", user, f"{user}:conversation-{number}", 60.0) for number in range(3)]
    assert [len(await registry.enter(reader)) for reader in readers] == [1, 2, 3]
    await registry.leave(readers[0])
    assert len(await registry.enter(readers[1])) == 2
