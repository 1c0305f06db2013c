"""A watcher in a server process finishes what other processes have left."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from omniagent import Agent, InMemorySessionManager, MongoBackendAdapter, MongoSessionManager, MongoTurnRegistry, tool
from omniagent.ai.operator import TurnOperator
from omniagent.app.watcher import TurnWatcher
from omniagent.errors import StorageUnavailable
from omniagent.messages import TextPart
from omniagent.persistence.store import ConversationStore
from omniagent.session.addresses import SessionAddress
from omniagent.session.manager import SessionManager, TurnStart, new_id
from omniagent.testing import InMemoryStore, MemoryRegistry, ScriptedModel, ToolCall
from omniagent.turns.lease import Claim, InboxMessage, TurnRegistry
from tests.fixtures.conversation import Clock, move_clock
from tests.fixtures.package_log import logged
from tests.runner.sessions import QUICK
from tests.turns.deaths import LEASE_SECONDS, MortalProcess, World
from tests.turns.registries import until

BRIEF = replace(QUICK, lease_seconds=0.1)
"""A turn that began a tenth of a second ago may be dead."""


pytestmark = pytest.mark.usefixtures("burial")


@pytest.fixture
async def store(mongod: str, own_database: Database[dict[str, Any]]) -> AsyncIterator[ConversationStore]:
    """A store of the test's own: a watcher finds the turns of everybody else in it, too."""
    async with MongoBackendAdapter(mongod, own_database.name) as store:
        yield store


def watcher_of(world: World, *, interval_seconds: float | None = None) -> TurnWatcher:
    async def runner(address: SessionAddress) -> TurnOperator:
        assert (address.user, address.session_id) == ("ada", "chat")
        return world.runner(MortalProcess(world))

    return TurnWatcher(world.store, world.registry, runner, settings=BRIEF, interval_seconds=interval_seconds)


async def _no_runner(_: SessionAddress) -> TurnOperator:
    raise AssertionError("nothing is to be run")


async def found(watcher: TurnWatcher) -> None:
    async def looked() -> bool:
        taken: int = await watcher.look()
        return taken == 1

    await until(looked)


async def is_complete(world: World) -> bool:
    answer = await world.session.answer(1)
    return answer is not None and answer.status == "complete"


async def test_a_dead_turn_is_finished_without_anybody_asking() -> None:
    world = World("mid text")
    await world.die()
    async with watcher_of(world, interval_seconds=0.01):
        await until(lambda: is_complete(world))
    assert len(world.model.requests) == 3, "the step under way was asked again, and no other"
    assert len(world.runs) == 1


async def test_a_living_turn_is_left_alone() -> None:
    world = World("mid text")
    asking = asyncio.create_task(world.runner().run("Hello"))
    await world.reached.wait()
    watcher = watcher_of(world)
    await asyncio.sleep(BRIEF.lease_seconds)  # old enough to be looked at
    assert await watcher.look() == 0
    world.goes_on.set()
    assert (await asking).status == "complete"
    assert len(world.model.requests) == 2


async def test_of_many_watchers_one_continues_a_turn() -> None:
    world = World("in a tool", retry_safe=True)
    await world.die()
    watchers = [watcher_of(world) for _ in range(5)]
    await asyncio.sleep(BRIEF.lease_seconds)
    assert sum(await asyncio.gather(*(watcher.look() for watcher in watchers))) == 1
    await until(lambda: is_complete(world))
    assert len(world.runs) == 2
    for watcher in watchers:
        await watcher.aclose()


async def test_messages_that_wait_for_nobody_are_answered_one_after_the_other() -> None:
    world = World()
    await world.runner().run("Hello")
    claim = Claim(world.session.key, "dead", "m0")
    await world.registry.claim(claim)
    for message_id in ("m2", "m3"):
        await world.registry.post(claim, InboxMessage(message_id, "And?"), 10)
    await world.registry.release(claim)
    world.clock.pass_by(LEASE_SECONDS)
    watcher = watcher_of(world)
    assert await watcher.look() == 1

    async def are_answered() -> bool:
        return await world.session.answer(3) is not None and await world.registry.running(world.session.key) is None

    await until(are_answered)
    assert await watcher.look() == 0
    await watcher.aclose()


async def test_many_sessions_in_which_nothing_can_be_run_hide_no_other() -> None:
    """Such as those whose messages wait behind an approval."""
    world = World()
    await world.session.create()
    for key in (*(f"!{number}" for number in range(150)), world.session.key):
        claim = Claim(key, new_id(), "m0")
        await world.registry.claim(claim)
        await world.registry.post(claim, InboxMessage("m1", "And?"), 10)
        await world.registry.release(claim)
    world.clock.pass_by(LEASE_SECONDS)
    watcher = watcher_of(world)
    assert await watcher.look() == 1
    await until(lambda: is_complete(world))
    await watcher.aclose()


async def test_what_fails_is_logged_and_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    world = World("mid text")
    await world.die()
    failures = 2

    async def runner(_: SessionAddress) -> TurnOperator:
        nonlocal failures
        if failures:
            failures -= 1
            raise StorageUnavailable("down")
        return world.runner(MortalProcess(world))

    with caplog.at_level(logging.WARNING, "omniagent.app.watcher"):
        watcher = TurnWatcher(world.store, world.registry, runner, settings=BRIEF, interval_seconds=0.005)
        async with watcher:
            await until(lambda: is_complete(world))
    assert logged(caplog) == ["session not taken up", "session not taken up", "dead turn continued"]


async def test_a_watcher_looks_at_a_failing_store_less_and_less(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Down(InMemoryStore):
        is_down = True
        looks = 0

        async def unfinished(self, before: datetime) -> AsyncIterator[Sequence[SessionAddress]]:
            self.looks += 1
            if self.is_down:
                raise StorageUnavailable("down")
            async for page in super().unfinished(before):
                yield page

    store, registry = Down(), MemoryRegistry()
    watcher = TurnWatcher(store, registry, _no_runner, interval_seconds=0.001, settings=BRIEF)
    with caplog.at_level(logging.WARNING, "omniagent.app.watcher"):
        watcher.start()
        watcher.start()  # once is enough

        async def has_failed() -> bool:
            return store.looks >= 3

        await until(has_failed)
        store.is_down = False

        async def has_recovered() -> bool:
            return store.looks >= 6

        await until(has_recovered)
        await watcher.aclose()
        await watcher.aclose()
    assert {record.message for record in caplog.records} == {"dead turns not looked for"}
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "turn-watcher"]


async def test_closing_leaves_a_continued_turn_to_its_store() -> None:
    world = World("mid text")
    await world.die()
    world.stage, world.deaths_left = "in the last text", 1
    watcher = watcher_of(world)
    await found(watcher)
    await world.reached.wait()
    await watcher.aclose()
    world.goes_on.set()
    await until(lambda: is_complete(world))


async def test_a_turn_of_a_dead_server_is_finished_by_another_on_mongodb(store: ConversationStore) -> None:
    """The first server has begun the turn and logged nothing more."""
    clock, user = Clock(), f"user:{new_id()}"
    registry = MongoTurnRegistry(store, lease_seconds=LEASE_SECONDS, clock=clock)
    session = MongoSessionManager(store, user, "chat", settings=QUICK)
    await registry.claim(Claim(session.key, "t1", "m1"))
    await session.begin_turn(TurnStart("t1", 1, "m1", [TextPart(text="Hello")]))
    model = ScriptedModel("Hello Ada.")

    async def runner(address: SessionAddress) -> TurnOperator:
        mine = MongoSessionManager(store, address.user, address.session_id, settings=QUICK)
        return TurnOperator(Agent("helper", ""), mine, provider=model, registry=registry)

    async def looked() -> bool:
        await watcher.look()
        return await registry.running(session.key) is None

    watcher = TurnWatcher(store, registry, runner, settings=BRIEF)
    await asyncio.sleep(BRIEF.lease_seconds)
    await watcher.look()
    assert model.requests == [], "its lease has not run out"
    clock.pass_by(LEASE_SECONDS)
    await until(looked)
    await watcher.aclose()
    answer = await session.answer(1)
    assert answer is not None
    assert (answer.text, len(model.requests)) == ("Hello Ada.", 1)


async def test_mongodb_finds_unfinished_turns_in_pages_and_no_others(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omniagent.persistence.store.PAGE", 2)
    user = "user:ada"
    begun = []
    for number in range(5):
        session = MongoSessionManager(store, user, f"s{number}", settings=QUICK, category="gold")
        await session.admit(99, f"t{number}")
        await session.begin_turn(TurnStart(f"t{number}", 1, f"m{number}", []))
        begun.append(SessionAddress(user, f"s{number}", "gold"))
    erased = MongoSessionManager(store, user, "s1", settings=QUICK)
    await erased.mark_erased()

    async def unfinished(before: datetime) -> list[SessionAddress]:
        return [address async for page in store.unfinished(before) for address in page]

    now = datetime.now(UTC)
    assert await unfinished(now + timedelta(seconds=1)) == [begun[0], *begun[2:]]
    assert await unfinished(now - timedelta(minutes=1)) == []
    assert await store.address_of(begun[0].key) == begun[0]
    assert await store.address_of("nobody:s0") is None


class Shop:
    """Sessions in which every turn waits for an approval."""

    def __init__(self, store: InMemoryStore | ConversationStore, registry: TurnRegistry) -> None:
        self._store = store
        self._registry = registry
        self.broken = ""

    def session(self, session_id: str) -> SessionManager:
        if isinstance(self._store, InMemoryStore):
            return InMemorySessionManager("user:ada", session_id, store=self._store, settings=QUICK)
        return MongoSessionManager(self._store, "user:ada", session_id, settings=QUICK)

    async def runner(self, address: SessionAddress) -> TurnOperator:
        @tool(approval=True)
        async def pay() -> str:
            """Pay."""
            return "paid"

        if address.session_id == self.broken:
            raise StorageUnavailable("down")
        model = ScriptedModel(default=ToolCall("pay"))
        return TurnOperator(
            Agent("shop", "", [pay]), self.session(address.session_id), provider=model, registry=self._registry
        )

    async def order(self, session_id: str) -> SessionAddress:
        address = SessionAddress("user:ada", session_id)
        assert (await (await self.runner(address)).run("Pay")).status == "waiting"
        return address

    async def is_waiting(self, session_id: str) -> bool:
        answer = await self.session(session_id).answer(1)
        assert answer is not None
        return answer.status == "waiting"


async def _closes_expired_turns(
    store: InMemoryStore | ConversationStore, registry: TurnRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(store, registry)
    early = [await shop.order(f"early-{number}") for number in range(2)]
    await shop.order("erased")
    await shop.session("erased").mark_erased()
    move_clock(monkeypatch, days=QUICK.request_expiry_days + 1)
    await shop.order("late")
    assert await store.expired(9) == early
    assert await store.expired(1) == early[:1]
    shop.broken = "early-0"
    watcher = TurnWatcher(store, registry, shop.runner, settings=QUICK)
    assert await watcher.look() == 0
    assert [await shop.is_waiting(name) for name in ("early-0", "early-1", "late")] == [True, False, True]
    shop.broken = ""
    await watcher.look()
    assert await shop.is_waiting("early-0"), "they are looked for once an hour"


async def test_turns_that_have_expired_are_closed_and_one_that_fails_keeps_no_other_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await _closes_expired_turns(InMemoryStore(), MemoryRegistry(), monkeypatch)


async def test_turns_that_have_expired_are_closed_on_mongodb(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _closes_expired_turns(store, MongoTurnRegistry(store), monkeypatch)
