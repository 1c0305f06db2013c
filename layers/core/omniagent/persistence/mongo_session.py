"""`MongoSessionManager`: a session kept in MongoDB."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence
from typing import Any

from pymongo import ASCENDING, DESCENDING

from omniagent.errors import ConfigurationError, NotFound
from omniagent.persistence.connection import translated
from omniagent.persistence.erasure import Erasure
from omniagent.persistence.store import ConversationStore, from_bson, from_bsons
from omniagent.persistence.stored_turns import rolling_summary, session_message
from omniagent.persistence.stored_values import storable_text
from omniagent.persistence.summary_writes import SummaryWrites
from omniagent.persistence.turn_writes import TurnWrites
from omniagent.persistence.user_slots import UserSlots
from omniagent.session.identity import public_session_id
from omniagent.session.manager import (
    RollingSummary,
    SessionHead,
    SessionManager,
    SessionMessage,
    SessionState,
    TurnStart,
    turns_of,
)
from omniagent.session.window import PastTurn
from omniagent.settings import Settings
from omniagent.tracing import SpanKind, trace_method

TURNS_PER_READ = 50
_HEAD = {"latest_turn_number": 1, "active_turn_id": 1, "name": 1}
_SESSIONS = {"db.collection.name": "sessions"}
_MESSAGES = {"db.collection.name": "messages"}


class MongoSessionManager(SessionManager):
    """Reads and writes one session through the store that `MongoBackendAdapter.initialize()` returned."""

    def __init__(
        self,
        store: ConversationStore,
        user: str,
        session_id: str | None = None,
        *,
        settings: Settings | None = None,
        category: str | None = None,
    ) -> None:
        self.store = _checked(store)
        super().__init__(user, session_id, settings=settings, category=category)
        self.open_turns = store.open_turns
        self.slots = UserSlots(store, self)
        self._turns = TurnWrites(store, self, self.slots)
        self._summaries = SummaryWrites(store, self)
        self._erasure = Erasure(store)

    @classmethod
    async def of_key(
        cls, store: ConversationStore, key: str, *, settings: Settings | None = None
    ) -> "MongoSessionManager":
        """Open a session by its key, as a job does that knows nothing else. Raises `NotFound` without its user."""
        user_id = key.partition(":")[0]
        with translated():
            user = await _checked(store).users.find_one({"_id": user_id}, {"client_id": 1, "category": 1})
        if user is None:
            raise NotFound
        session_id = public_session_id(key)
        return cls(store, user["client_id"], session_id, settings=settings, category=user.get("category"))

    @trace_method(kind=SpanKind.DB, name="mongodb.head", attributes=_SESSIONS)
    async def head(self) -> SessionHead | None:
        with translated():
            found = await self.store.sessions.find_one({"_id": self.key, "erased_at": None}, _HEAD)
        return _head(found) if found else None

    @trace_method(kind=SpanKind.DB, name="mongodb.load", attributes=_MESSAGES)
    async def load(self, message_id: str | None = None) -> SessionState:
        turns = max(self.settings.context_max_turns, self.settings.summary_after_turns) + 1
        head, summary, earlier, recent = await asyncio.gather(
            self.head(), self.latest_summary(), self._message_by_id(message_id), self._newest(turns)
        )
        if head is None:
            return SessionState()
        if head.active_turn_id is None and not _has_answer(recent, head.latest_turn_number):
            recent = await self._newest(turns)  # it may have been stored after the messages were read
        messages = [message for message in recent if message.turn_number <= head.latest_turn_number]
        latest = {message.role: message for message in messages if message.turn_number == head.latest_turn_number}
        return SessionState(
            head=head,
            summary=summary,
            turns=turns_of(messages),
            earlier=earlier,
            question=latest.get("user"),
            answer=latest.get("assistant"),
        )

    @trace_method(kind=SpanKind.DB, name="mongodb.answer", attributes=_MESSAGES)
    async def answer(self, turn_number: int) -> SessionMessage | None:
        return await self._message({"turn_number": turn_number, "role": "assistant"})

    async def admit(self, limit: int) -> Sequence[str]:
        return await self.slots.admit(limit)

    async def withdraw(self, *keys: str) -> None:
        await self.slots.withdraw(*keys)

    async def begin_turn(self, start: TurnStart) -> None:
        await self._turns.begin(start)

    async def finish_turn(self, answer: SessionMessage) -> SessionMessage:
        return await self._turns.finish(answer)

    async def repair_turn(self, answer: SessionMessage) -> SessionMessage | None:
        return await self._turns.repair(answer)

    async def past_turns(self, first: int, last: int) -> AsyncIterator[Sequence[PastTurn]]:
        for start in range(first, last + 1, TURNS_PER_READ):
            end = min(start + TURNS_PER_READ - 1, last)
            if messages := await self._between(start, end):
                yield turns_of(messages)

    async def latest_summary(self, *, draft: bool = False) -> RollingSummary | None:
        summary = await self._summaries.latest(draft=draft)
        return rolling_summary(summary) if summary else None

    async def add_summary(self, summary: RollingSummary, *, draft: bool = False) -> bool:
        return await self._summaries.add(summary, draft=draft)

    async def publish_draft(self) -> bool:
        return await self._summaries.publish_draft()

    @trace_method(kind=SpanKind.DB, name="mongodb.rename", attributes=_SESSIONS)
    async def rename(self, name: str, *, was: str | None) -> bool:
        unchanged = {"_id": self.key, "name": was, "erased_at": None}
        return await self.store.update_session(unchanged, {"name": storable_text(name)}) is not None

    async def mark_erased(self) -> bool:
        return await self._erasure.mark_erased(self.key)

    async def erase_some(self, limit: int = 500) -> bool:
        return await self._erasure.erase_some(self.key, limit)

    async def _newest(self, turns: int) -> list[SessionMessage]:
        with translated():
            newest = self.store.messages.find({"session_id": self.key})
            found = await newest.sort([("turn_number", DESCENDING), ("role", ASCENDING)]).limit(2 * turns).to_list()
        return self._read(found[::-1])

    @trace_method(kind=SpanKind.DB, name="mongodb.past_turns", attributes=_MESSAGES)
    async def _between(self, first: int, last: int) -> list[SessionMessage]:
        query = {"session_id": self.key, "turn_number": {"$gte": first, "$lte": last}}
        with translated():
            order = [("turn_number", ASCENDING), ("role", DESCENDING)]
            return self._read(await self.store.messages.find(query).sort(order).to_list())

    async def _message_by_id(self, message_id: str | None) -> SessionMessage | None:
        return await self._message({"client_message_id": message_id}) if message_id is not None else None

    async def _message(self, query: dict[str, Any]) -> SessionMessage | None:
        with translated():
            found = await self.store.messages.find_one({"session_id": self.key} | query)
        return session_message(from_bson(self.store.models.message, found)) if found else None

    def _read(self, found: list[dict[str, Any]]) -> list[SessionMessage]:
        return [session_message(message) for message in from_bsons(self.store.models.message, found)]


def _checked(store: object) -> ConversationStore:
    if isinstance(store, ConversationStore):
        return store
    if inspect.iscoroutine(store):
        store.close()  # or Python warns that nobody awaited it
        raise ConfigurationError("the store is a coroutine: write `store = await adapter.initialize()`")
    raise ConfigurationError(
        f"the store is {store!r}: pass what `await MongoBackendAdapter(…).initialize()` returned, "
        "or use InMemorySessionManager, which needs none"
    )


def _head(found: dict[str, Any]) -> SessionHead:
    return SessionHead(found["latest_turn_number"], found.get("active_turn_id"), found.get("name"))


def _has_answer(messages: Sequence[SessionMessage], turn_number: int) -> bool:
    return turn_number == 0 or any(m.turn_number == turn_number and m.role == "assistant" for m in messages)
