"""`MongoSessionManager`: a session stored in MongoDB."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from pymongo import ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession

from omniagent.errors import ConfigurationError, InvalidRequest, NotFound, StorageConflict
from omniagent.messages import Feedback
from omniagent.persistence.documents import IS_BUSY
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.session_writes import SessionWrites
from omniagent.persistence.store import ConversationStore, from_bson, to_bson
from omniagent.persistence.stored_session import head_of, session_message, turn_of
from omniagent.persistence.stored_values import now, storable_text
from omniagent.persistence.tree_reads import (
    find_messages,
    read_children,
    read_end,
    read_path,
    read_summary,
    read_tree,
    without_parts,
)
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn, RollingSummary, SessionHead, SessionMessage
from omniagent.session.manager import NOT_AN_ANSWER
from omniagent.session.tree import Place
from omniagent.settings import Settings
from omniagent.tracing import SpanKind, trace_method

_SUMMARY = [each.name for each in fields(RollingSummary) if each.name != "basis"]
_SUMMARIES = {"db.collection.name": "summaries"}


_HEAD = dict.fromkeys(
    ("version", "leaf", "branches", "turn", "queue", "name", "agent", "updated_at", "summary_basis", "erased_at"), 1
)
_SESSIONS = {"db.collection.name": "sessions"}
_MESSAGES = {"db.collection.name": "messages"}


class MongoSessionManager(SessionWrites):
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
        self.store: ConversationStore = _checked(store)
        super().__init__(user, session_id, settings=settings, category=category)
        self.open_turns = store.open_turns

    @classmethod
    async def of_key(
        cls, store: ConversationStore, key: str, *, settings: Settings | None = None
    ) -> "MongoSessionManager":
        """Open a session by its key, for a job that knows only that. Raises `NotFound` if its user does not exist."""
        address = await _checked(store).address_of(key)
        if address is None:
            raise NotFound
        return cls(store, address.user, address.session_id, settings=settings, category=address.category)

    @trace_method(kind=SpanKind.DB, name="mongodb.head", attributes=_SESSIONS)
    async def head(self, *, erased: bool = False) -> SessionHead | None:
        alive = {} if erased else {"erased_at": None}
        with translated():
            found = await self.store.sessions.find_one({"_id": self.key} | alive, _HEAD)
        return head_of(self.store.models, found) if found else None

    @trace_method(kind=SpanKind.DB, name="mongodb.path", attributes=_MESSAGES)
    async def path(self, at: Place, *, first: int = 1, limit: int | None = None) -> Sequence[SessionMessage]:
        return self._read(await read_path(self.store, self.key, at, first=first, limit=limit))

    @trace_method(kind=SpanKind.DB, name="mongodb.find", attributes=_MESSAGES)
    async def find(self, *ids: str, at: Place | None = None, anywhere: str = "") -> Sequence[SessionMessage]:
        return self._read(await find_messages(self.store, self.key, *ids, at=at, anywhere=anywhere))

    def _read(self, stored: Iterable[Mapping[str, Any]]) -> list[SessionMessage]:
        return [session_message(from_bson(self.store.models.message, each)) for each in stored]

    @trace_method(kind=SpanKind.DB, name="mongodb.children", attributes=_MESSAGES)
    async def children(self, *parents: str) -> Mapping[str, Sequence[SessionMessage]]:
        found = await read_children(self.store, self.key, *parents)
        return {parent: [without_parts(each) for each in children] for parent, children in found.items()}

    @trace_method(kind=SpanKind.DB, name="mongodb.tree", attributes=_MESSAGES)
    async def tree(self, *, limit: int, after: Place | None = None) -> Sequence[SessionMessage]:
        segment = (after.branch, after.order) if after is not None else None
        return self._read(await read_tree(self.store, self.key, limit=limit, after=segment))

    @trace_method(kind=SpanKind.DB, name="mongodb.end_of", attributes=_MESSAGES)
    async def end_of(self, place: Place) -> Place:
        return await read_end(self.store, self.key, place)

    @trace_method(kind=SpanKind.DB, name="mongodb.busy_sessions", attributes=_SESSIONS)
    async def busy_sessions(self) -> Sequence[tuple[str, LiveTurn | None]]:
        others = IS_BUSY | {"user_id": self.user_id, "_id": {"$ne": self.key}, "erased_at": None}
        with translated():
            found = await self.store.sessions.find(others, {"turn": 1}).limit(100).to_list()
        return [(each["_id"], turn_of(each)) for each in found]

    @trace_method(kind=SpanKind.DB, name="mongodb.rate", attributes=_MESSAGES)
    async def rate(self, message_id: str, feedback: Feedback | None) -> SessionMessage:
        at = {"session_id": self.key, "client_message_id": message_id}
        stored = None
        if feedback is not None:
            stored = {**feedback.model_dump(), "text": feedback.text and storable_text(feedback.text)}

        async def work(transaction: AsyncClientSession) -> dict[str, Any]:
            alive = {"_id": self.key, "erased_at": None}
            session = await self.store.sessions.find_one(alive, {"turn.message_id": 1}, session=transaction)
            message = await self.store.messages.find_one(at, {"role": 1}, session=transaction)
            if session is not None and message is None and (session.get("turn") or {}).get("message_id") == message_id:
                raise InvalidRequest(NOT_AN_ANSWER)
            if session is None or message is None:
                raise NotFound
            if message["role"] != "assistant":
                raise InvalidRequest(NOT_AN_ANSWER)
            rated = await self.store.messages.find_one_and_update(
                at, {"$set": {"feedback": stored}}, return_document=ReturnDocument.AFTER, session=transaction
            )
            if rated is None:
                raise NotFound
            return rated

        return session_message(from_bson(self.store.models.message, await self.store.transaction(work)))

    @trace_method(kind=SpanKind.DB, name="mongodb.latest_summary", attributes=_SUMMARIES)
    async def latest_summary(self, at: Place, *, draft: bool = False) -> RollingSummary | None:
        found = await read_summary(self.store, self.key, at, draft=draft)
        if found is None:
            return None
        summary = from_bson(self.store.models.summary, found)
        return RollingSummary(**{name: getattr(summary, name) for name in _SUMMARY})

    @trace_method(kind=SpanKind.DB, name="mongodb.add_summary", attributes=_SUMMARIES)
    async def add_summary(self, summary: RollingSummary, at: Place, *, draft: bool = False) -> bool:
        stored = {name: getattr(summary, name) for name in _SUMMARY}
        stored |= {"session_id": self.key, "draft": draft, "content": storable_text(summary.content)}
        document = await self.store.fill(self.store.models.summary(**stored), self, is_paid=True)

        async def work(transaction: AsyncClientSession) -> bool:
            session = await self._fenced(transaction)
            if session is None or summary.basis not in (None, session.get("summary_basis") or ""):
                return False
            newest = await read_summary(self.store, self.key, at, draft=draft, transaction=transaction)
            is_next = summary.start_turn_number == (newest["end_turn_number"] if newest else 0) + 1
            if not is_next or summary.end_turn_number < summary.start_turn_number:
                return False
            await self.store.summaries.insert_one(to_bson(document), session=transaction)
            return True

        try:
            return await self.store.transaction(work)
        except StorageConflict:
            return False

    @trace_method(kind=SpanKind.DB, name="mongodb.publish_drafts", attributes=_SUMMARIES)
    async def publish_drafts(self, at: Place | None) -> bool:
        async def work(transaction: AsyncClientSession) -> bool:
            newest = None
            if at is not None:
                newest = await read_summary(self.store, self.key, at, draft=True, transaction=transaction)
            if (newest is None and at is not None) or await self._fenced(transaction) is None:
                return False
            summaries = self.store.summaries
            others = {"session_id": self.key, "_id": {"$ne": newest["_id"] if newest else None}}
            await summaries.delete_many(others, session=transaction)
            if newest is None:
                return False
            published = {"$set": {"draft": False, "start_turn_number": 1}}
            await summaries.update_one({"_id": newest["_id"]}, published, session=transaction)
            rebuilt = {"$set": {"rebuilt_at": now(), "summary_basis": new_id()}}
            await self.store.sessions.update_one({"_id": self.key}, rebuilt, session=transaction)
            return True

        return await self.store.transaction(work)

    async def _fenced(self, transaction: AsyncClientSession) -> dict[str, Any] | None:
        """Return the session and lock it until the transaction ends.

        This takes a write that changes something: reads and no-op writes do not conflict with other writes.
        """
        return await self.store.sessions.find_one_and_update(
            {"_id": self.key, "erased_at": None},
            {"$set": {"fence": new_id()}},
            projection={"summary_basis": 1},
            session=transaction,
        )

    @trace_method(kind=SpanKind.DB, name="mongodb.rename", attributes=_SESSIONS)
    async def rename(self, name: str, *, was: str | None) -> bool:
        unchanged = {"_id": self.key, "name": was, "erased_at": None}
        return await self.store.update_session(unchanged, {"name": storable_text(name)}) is not None

    async def erase_some(self, limit: int = 500) -> bool:
        return await self.store.erase_some(self.key, limit)


def _checked(store: object) -> ConversationStore:
    if isinstance(store, ConversationStore):
        return store
    if inspect.iscoroutine(store):
        store.close()  # otherwise Python warns that it was never awaited
        raise ConfigurationError("the store is a coroutine: write `store = await adapter.initialize()`")
    raise ConfigurationError(
        f"the store is {store!r}: pass what `await MongoBackendAdapter(…).initialize()` returned, "
        "or use InMemorySessionManager, which needs none"
    )
