"""Deletion, on the real MongoDB: marked first, then in pieces, by the request or by the sweep."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from omniagent import Agent, TurnHooks
from omniagent.ai.operator import TurnOperator
from omniagent.app.sweep import Sweeper
from omniagent.errors import SessionErased
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.session.ids import new_id
from omniagent.session.live import Place
from omniagent.session.manager import SessionAddress
from omniagent.settings import Settings
from omniagent.testing import MemoryRegistry, ScriptedModel
from omniagent.turns.registry import Chunk
from omniagent.turns.state_events import Erase
from tests.persistence.turns import apply, begin, converse, open_session, summary

Json = dict[str, Any]
AN_HOUR_AGO = datetime.now(UTC) - timedelta(hours=1)


@dataclass
class House:
    """A process that deletes, with a team's own `on_erase`."""

    store: ConversationStore
    database: Database[Json]

    def __post_init__(self) -> None:
        self.registry = MemoryRegistry()
        self.calls: list[tuple[str, str | None]] = []
        self.is_down = False

    def operator(self, session: MongoSessionManager) -> TurnOperator:
        hooks = TurnHooks(on_erase=self._on_erase)
        return TurnOperator(Agent("a", ""), session, provider=ScriptedModel(), registry=self.registry, hooks=hooks)

    async def sweep(self, seconds: float = 60.0, retention_days: int = 0) -> int:
        settings = Settings(session_retention_days=retention_days)
        return await Sweeper(self.store, self._runner, settings).delete(lambda: seconds)

    def let_time_pass(self) -> None:
        """Let all marks grow old."""
        for collection in (self.database.users, self.database.sessions):
            collection.update_many({"erased_at": {"$type": "date"}}, {"$set": {"erased_at": AN_HOUR_AGO}})

    def left(self, prefix: str) -> int:
        """How many documents are left of a user, or of a session."""
        key = {"$gte": prefix, "$lt": prefix + "\x7f"}
        by_id = sum(self.database[name].count_documents({"_id": key}) for name in ("users", "sessions"))
        return by_id + sum(
            self.database[name].count_documents({"session_id": key}) for name in ("messages", "summaries")
        )

    async def _runner(self, address: SessionAddress) -> TurnOperator:
        return self.operator(open_session(self.store, address.session_id, address.user))

    async def _on_erase(self, user: str, session_id: str | None) -> None:
        if self.is_down:
            raise OSError("the team's store is down")
        self.calls.append((user, session_id))


@pytest.fixture
def house(store: ConversationStore, database: Database[Json]) -> House:
    house = House(store, database)
    database.sessions.delete_many({"erased_at": {"$type": "date"}})  # of other tests
    database.users.delete_many({"erased_at": {"$type": "date"}})
    return house


async def test_a_deleted_session_leaves_nothing_and_everything_else(house: House) -> None:
    user = f"user:{new_id()}"
    gone, kept = (open_session(house.store, name, user) for name in ("a", "ab"))
    for session in (gone, kept):
        await converse(session, [1, 2, 3])
        assert await session.add_summary(summary(1, 1), Place(order=9))
        assert await session.add_summary(summary(1, 2), Place(order=9), draft=True)
    assert await house.operator(gone).erase_session()
    assert house.left(gone.key) - house.left(kept.key) == 0
    assert house.left(kept.key) == 1 + 6 + 2


async def test_a_session_deleted_while_it_is_written_stays_deleted(house: House) -> None:
    for number in range(6):
        session = open_session(house.store, f"s{number}")
        await converse(session, [1, 2])
        await asyncio.gather(
            session.add_summary(summary(1, 1), Place(order=9)),
            house.operator(session).erase_session(lambda: 0.0),  # it does not wait for a turn that begins
            begin(session, 3),
            return_exceptions=True,
        )
        assert house.left(session.key) == 0


async def test_a_sweep_finishes_a_deletion_killed_after_its_mark(house: House) -> None:
    session = open_session(house.store)
    await converse(session, range(1, 4))
    await house.registry.append(session.key, "turn", Chunk(0, "run", session.now(), b"what was streamed"))
    await apply(session, Erase())
    await house.sweep()
    assert house.left(session.key), "its request may still be at work"
    house.let_time_pass()
    assert await house.sweep(seconds=0) == 0
    assert house.left(session.key), "there was no time"
    assert await house.sweep() == 0
    assert house.left(session.key) == 0
    assert await house.registry.read(session.key, "turn") == []


async def test_a_hook_that_fails_is_repeated_by_every_sweep(house: House) -> None:
    session = open_session(house.store)
    other = open_session(house.store, "other", session.user)
    await converse(session, [1])
    await converse(other, [1])
    house.is_down = True
    assert not await house.operator(session).erase_session()
    assert not await house.operator(other).erase_user()
    assert [await each.head() for each in (session, other)] == [None, None]
    house.let_time_pass()
    assert await house.sweep() == 3, "the user and two sessions"
    house.is_down = False
    assert await house.sweep() == 0
    assert set(house.calls) == {(session.user, "chat"), (session.user, "other"), (session.user, None)}
    assert house.left(session.user_id) == 0


async def test_a_session_inserted_behind_the_mark_of_its_user_is_found(house: House) -> None:
    session, late = open_session(house.store), open_session(house.store)
    await converse(session, [1])
    await converse(late, [1])
    assert not await house.operator(session).erase_user()
    assert house.left(session.user_id) == 1, "the mark alone"
    with pytest.raises(SessionErased):
        await begin(open_session(house.store, "new", session.user), 1)
    # The insert of a process that read the user before the mark.
    moved = house.database.sessions.find_one_and_delete({"_id": late.key})
    assert moved is not None
    moved |= {"_id": f"{session.user_id}:late", "user_id": session.user_id}
    house.database.sessions.insert_one(moved)
    house.let_time_pass()
    assert await house.sweep() == 0
    assert house.left(session.user_id) == 0
    await converse(open_session(house.store, "again", session.user), [1])


async def test_a_sweep_that_comes_late_keeps_what_is_new(house: House) -> None:
    session = open_session(house.store)
    await converse(session, [1])
    assert await house.operator(session).erase_marked()
    assert await house.operator(session).erase_marked_user()
    assert (house.left(session.user_id), house.calls) == (4, [])


async def test_idle_sessions_are_deleted_by_retention(house: House) -> None:
    old, recent = open_session(house.store), open_session(house.store)
    for session, days in ((old, 31), (recent, 29)):
        await converse(session, [1])
        last = datetime.now(UTC) - timedelta(days=days)
        house.database.sessions.update_one({"_id": session.key}, {"$set": {"updated_at": last}})
    await house.sweep()
    assert await old.head() is not None, "retention is off"
    await house.sweep(retention_days=30)
    assert await old.head() is None
    house.let_time_pass()
    await house.sweep()
    assert (house.left(old.key), house.left(recent.key)) == (0, 3)
