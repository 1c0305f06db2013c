"""The keeper: once a tick the lease, the stop flag and the log, whatever the registry does."""

import asyncio
import ssl
import time

import pytest

from omniagent.protocol.events import StartStep, TextDelta
from omniagent.testing import MemoryRegistry
from omniagent.turns.claiming import taken
from omniagent.turns.event_log import EventLog
from omniagent.turns.keeper import LeaseKeeper
from omniagent.turns.lease import MAX_CHUNK_BYTES, Claim, OnDead, Renewal, RunningTurn
from tests.fixtures.conversation import Clock
from tests.fixtures.package_log import logged
from tests.turns.registries import Hanging, Unreliable, until

CLAIM = Claim("session", "turn", "message")
TICK = 0.01


class Kept:
    """A log that a keeper keeps, and what the keeper told."""

    def __init__(self, registry: Unreliable, tick_seconds: float = TICK) -> None:
        self.registry = registry
        self.log = EventLog()
        self.told: asyncio.Queue[Renewal] = asyncio.Queue()
        self.keeper = LeaseKeeper(registry, CLAIM, tick_seconds=tick_seconds)
        self.keeper.watch(self.told.put_nowait)
        self.keeper.attach(self.log)

    def say(self, *texts: str) -> None:
        for text in texts:
            self.log.push(TextDelta("0", text))

    async def logged(self) -> list[bytes]:
        return [frames for _, frames in await self.registry.read(CLAIM.session, CLAIM.turn_id)]

    async def has_failed(self) -> bool:
        return self.registry.refusals > 0

    async def is_logged(self) -> bool:
        return b"".join(await self.logged()) == b"".join(self.log.frames)


@pytest.fixture
async def registry() -> Unreliable:
    registry = Unreliable()
    await registry.claim(CLAIM)
    return registry


async def test_what_came_within_a_tick_is_one_chunk(registry: Unreliable) -> None:
    kept = Kept(registry)
    kept.say(*"A hundred tokens are no hundred writes.")
    await until(kept.is_logged)
    kept.say(*"Nor the next ones.")
    await until(kept.is_logged)
    await kept.keeper.finish()
    assert len(await kept.logged()) == registry.appends == 2


async def test_the_first_text_of_a_continued_turn_is_logged_before_the_next_tick(registry: Unreliable) -> None:
    log = EventLog([b": the frames of the process before\n\n"])
    keeper = LeaseKeeper(registry, CLAIM, tick_seconds=3600)
    keeper.attach(log, logged=1, next_chunk=1)

    async def has_text() -> bool:
        chunks = await registry.read(CLAIM.session, CLAIM.turn_id)
        return b"Here again." in b"".join(frames for _, frames in chunks)

    log.push(StartStep())
    await asyncio.sleep(0)
    log.push(TextDelta("0", "Here again."))
    await until(has_text)
    await keeper.finish()


async def test_a_tick_without_events_writes_no_chunk(registry: Unreliable) -> None:
    kept = Kept(registry)

    async def has_renewed() -> bool:
        return registry.renewals >= 3

    await until(has_renewed)
    await kept.keeper.finish()
    assert registry.appends == 0


async def test_the_end_is_logged_before_the_session_is_given_back(registry: Unreliable) -> None:
    kept = Kept(registry, tick_seconds=3600)
    kept.say("all at once")
    kept.log.end()
    await kept.keeper.finish()
    assert await kept.is_logged()
    assert await registry.running(CLAIM.session) is None


async def test_a_stop_is_told(registry: Unreliable) -> None:
    kept = Kept(registry)
    await registry.stop(CLAIM.session)
    assert await kept.told.get() == Renewal.STOPPING
    await kept.keeper.finish()


async def test_a_loss_is_told_and_the_successor_is_left_alone(registry: Unreliable) -> None:
    await registry.release(CLAIM)
    successor = Claim(CLAIM.session, "another", "message-2")
    await registry.claim(successor)
    kept = Kept(registry)
    assert await kept.told.get() == Renewal.LOST
    await kept.keeper.finish()
    running = await registry.running(CLAIM.session)
    assert running is not None
    assert running.claim == successor


async def test_a_chunk_fits_into_an_item_and_no_frame_is_cut(registry: Unreliable) -> None:
    kept = Kept(registry)
    kept.say(*("x" * (MAX_CHUNK_BYTES // 3) for _ in range(7)))
    await kept.keeper.finish()
    chunks = await kept.logged()
    assert [chunk.count(b"\n\n") for chunk in chunks] == [2, 2, 2, 1]
    assert all(len(chunk) <= MAX_CHUNK_BYTES for chunk in chunks)
    assert await kept.is_logged()


async def test_a_frame_that_is_larger_than_a_chunk_stands_alone(registry: Unreliable) -> None:
    kept = Kept(registry)
    kept.say("small", "x" * (MAX_CHUNK_BYTES + 1), "small")
    await kept.keeper.finish()
    assert [chunk.count(b"\n\n") for chunk in await kept.logged()] == [1, 1, 1]


async def test_a_registry_that_was_down_gets_everything_once_it_is_back(
    registry: Unreliable, caplog: pytest.LogCaptureFixture
) -> None:
    registry.is_down = True
    kept = Kept(registry)
    kept.say("said while it was down, ")

    async def has_noticed() -> bool:
        return bool(logged(caplog))

    await until(has_noticed)
    registry.is_down = False
    kept.say("and after.")
    await until(kept.is_logged)
    await kept.keeper.finish()
    assert logged(caplog) == ["turn registry failing: no stop, no resume"]


async def test_a_lost_answer_makes_no_chunk_twice_and_none_different(registry: Unreliable) -> None:
    """A reader may have read the chunk already: its number must keep its bytes."""
    registry.loses_answers = True
    kept = Kept(registry)
    kept.say("first")
    await until(kept.is_logged)
    [first] = await kept.logged()
    kept.say("second")
    registry.loses_answers = False
    await until(kept.is_logged)
    await kept.keeper.finish()
    assert (await kept.logged())[0] == first


@pytest.mark.parametrize("error", [None, ssl.SSLError("broken"), KeyError("S")])
async def test_a_registry_that_stays_down_does_not_hold_the_turn(
    registry: Unreliable, caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    kept = Kept(registry)
    kept.say("said")
    registry.is_down, registry.error = True, error
    await kept.keeper.finish()
    assert logged(caplog) == ["claim not released, its lease will run out"]


async def test_a_release_that_hangs_is_given_up_in_time(caplog: pytest.LogCaptureFixture) -> None:
    registry = Hanging()
    await registry.claim(CLAIM)
    await LeaseKeeper(registry, CLAIM, tick_seconds=0.0, release_seconds=0.01).finish()
    assert logged(caplog) == ["claim not released, its lease will run out"]


@pytest.mark.parametrize("error", [ssl.SSLError("broken"), KeyError("S"), RuntimeError("no credentials")])
async def test_whatever_a_tick_raises_the_next_one_goes_on_and_the_claim_is_released(
    registry: Unreliable, error: Exception
) -> None:
    registry.is_down, registry.error = True, error
    kept = Kept(registry)
    kept.say("said")
    await until(kept.has_failed)
    registry.is_down = False
    await until(kept.is_logged)
    await kept.keeper.finish()
    assert await registry.running(CLAIM.session) is None


async def test_the_lease_is_renewed_before_anything_is_logged(registry: Unreliable) -> None:
    """From the claim on: the turn may take its time to begin."""
    keeper = LeaseKeeper(registry, CLAIM, tick_seconds=TICK)

    async def has_renewed() -> bool:
        return registry.renewals >= 2

    await until(has_renewed)
    await keeper.finish()
    assert registry.appends == 0


async def test_a_loss_before_anybody_watches_is_told_to_the_watcher(registry: Unreliable) -> None:
    await registry.release(CLAIM)
    keeper = LeaseKeeper(registry, CLAIM, tick_seconds=TICK)

    async def is_lost() -> bool:
        return keeper.lost

    await until(is_lost)
    told: list[Renewal] = []
    keeper.watch(told.append)
    assert told == [Renewal.LOST]
    await keeper.finish()


async def test_an_owner_that_was_paused_asks_before_it_logs(registry: Unreliable) -> None:
    """Whoever deletes a session takes the claim, waits two ticks for its owner, and then deletes the log."""
    for ended in (False, True):
        await registry.claim(CLAIM)
        kept = Kept(registry)
        kept.say("What was deleted meanwhile")
        await registry.seize(Claim(CLAIM.session, "deletion", "erase"))
        await registry.erase(CLAIM.session)
        time.sleep(3 * TICK)  # noqa: ASYNC251 - the process stands still, as one that is frozen does
        if not ended:
            assert await kept.told.get() == Renewal.LOST
        await kept.keeper.finish()
        assert await kept.logged() == []
        await registry.release(Claim(CLAIM.session, "deletion", "erase"))


class LateRegistry(MemoryRegistry):
    """Grants a claim so late that its lease has expired, and lets another process in before that is known."""

    def __init__(self, intruder: Claim | None = None) -> None:
        self.time = Clock()
        super().__init__(lease_seconds=10.0, clock=self.time)
        self._intruder = intruder

    async def claim(self, claim: Claim, on_dead: OnDead | None = None) -> RunningTurn | None:
        held = await super().claim(claim, on_dead)
        if claim == CLAIM and held is None:
            self.time.pass_by(11)
        if self._intruder is not None:
            intruder, self._intruder = self._intruder, None
            await super().claim(intruder)
        return held


async def test_a_claim_that_is_granted_late_is_renewed_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request was repeated: the lease began with the first one."""
    monkeypatch.setattr("omniagent.turns.claiming.LATE_CLAIM_SECONDS", 0.0)
    registry = LateRegistry()
    assert await taken(registry, CLAIM) is None
    held = await registry.running(CLAIM.session)
    assert held is not None
    assert held.claim == CLAIM
    assert held.lease_left == pytest.approx(10.0)


async def test_a_late_claim_is_repeated_if_another_process_has_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("omniagent.turns.claiming.LATE_CLAIM_SECONDS", 0.0)
    intruder = Claim("session", "another turn", "another message")
    held = await taken(LateRegistry(intruder), CLAIM)
    assert held is not None
    assert held.claim == intruder
