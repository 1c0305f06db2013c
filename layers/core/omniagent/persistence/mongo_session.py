"""`MongoSessionManager`: a session stored in MongoDB."""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import ASCENDING, DESCENDING, ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession

from omniagent.errors import ConfigurationError, InvalidRequest, NotFound, StorageConflict
from omniagent.messages import Feedback
from omniagent.persistence.documents import IS_BUSY, STEERING_ID, Summary
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.erasure import Erasure
from omniagent.persistence.live_state import head_of, turn_of
from omniagent.persistence.session_writes import SessionWrites
from omniagent.persistence.store import (
    ConversationStore,
    from_bson,
    from_bsons,
    rolling_summary,
    session_message,
    to_bson,
)
from omniagent.persistence.stored_values import now, storable_text
from omniagent.session.ids import new_id, session_key
from omniagent.session.live import Change, LiveTurn, SessionHead, SessionMessage, SessionState, turns_of
from omniagent.session.manager import NOT_AN_ANSWER, SessionManager
from omniagent.session.summary_store import RollingSummary
from omniagent.settings import Settings
from omniagent.tracing import SpanKind, trace_method

_SUMMARIES = {"db.collection.name": "summaries"}


class SummaryWrites:
    """The summaries of one session, and the drafts of a rebuild."""

    def __init__(self, store: ConversationStore, session: SessionManager) -> None:
        self._store = store
        self._session = session

    @trace_method(kind=SpanKind.DB, name="mongodb.latest_summary", attributes=_SUMMARIES)
    async def latest(self, *, draft: bool = False, transaction: AsyncClientSession | None = None) -> Summary | None:
        kind = {"session_id": self._session.key, "draft": draft}
        with translated():
            found = await self._store.summaries.find_one(
                kind, sort=[("end_turn_number", DESCENDING)], session=transaction
            )
        return from_bson(self._store.models.summary, found) if found else None

    @trace_method(kind=SpanKind.DB, name="mongodb.add_summary", attributes=_SUMMARIES)
    async def add(self, summary: RollingSummary, *, draft: bool) -> bool:
        """Store a summary that continues the newest. See `SessionManager.add_summary`."""
        document = await self._store.fill_or_default(lambda: self._document(summary, draft=draft), self._session)

        async def work(transaction: AsyncClientSession) -> bool:
            session = await self._fenced(transaction)
            if session is None or summary.basis not in (None, _basis(session)):
                return False
            if not summary.start_turn_number <= summary.end_turn_number < session["latest_turn_number"]:
                return False
            newest = await self.latest(draft=draft, transaction=transaction)
            if summary.start_turn_number != (newest.end_turn_number if newest else 0) + 1:
                return False
            await self._store.summaries.insert_one(to_bson(document), session=transaction)
            return True

        try:
            return await self._store.transaction(work)
        except StorageConflict:
            return False

    @trace_method(kind=SpanKind.DB, name="mongodb.publish_draft", attributes=_SUMMARIES)
    async def publish_draft(self) -> bool:
        """Replace all summaries with the newest draft. See `SessionManager.publish_draft`."""

        async def work(transaction: AsyncClientSession) -> bool:
            newest = await self.latest(draft=True, transaction=transaction)
            if newest is None or await self._fenced(transaction) is None:
                return False
            others = {"session_id": self._session.key, "end_turn_number": {"$ne": newest.end_turn_number}}
            summaries = self._store.summaries
            await summaries.delete_many({"session_id": self._session.key, "draft": False}, session=transaction)
            await summaries.delete_many(others | {"draft": True}, session=transaction)
            await summaries.update_one(
                {"session_id": self._session.key, "draft": True},
                {"$set": {"draft": False, "start_turn_number": 1}},
                session=transaction,
            )
            rebuilt = {"$set": {"rebuilt_at": now(), "summary_basis": new_id()}}
            await self._store.sessions.update_one({"_id": self._session.key}, rebuilt, session=transaction)
            return True

        return await self._store.transaction(work)

    @trace_method(kind=SpanKind.DB, name="mongodb.drop_summaries", attributes=_SUMMARIES)
    async def drop(self) -> None:
        """Delete all summaries. See `SessionManager.drop_summaries`."""
        with translated():
            await self._store.summaries.delete_many({"session_id": self._session.key})

    async def _fenced(self, transaction: AsyncClientSession) -> dict[str, Any] | None:
        """Return the session and lock it until the transaction ends.

        This takes a write that changes something: reads and no-op writes do not conflict with other writes.
        """
        return await self._store.sessions.find_one_and_update(
            {"_id": self._session.key, "erased_at": None},
            {"$set": {"fence": new_id()}},
            projection={"latest_turn_number": 1, "summary_basis": 1},
            session=transaction,
        )

    def _document(self, summary: RollingSummary, *, draft: bool) -> Summary:
        return self._store.models.summary(
            session_id=self._session.key,
            draft=draft,
            content=storable_text(summary.content),
            token_count=summary.token_count,
            start_turn_number=summary.start_turn_number,
            end_turn_number=summary.end_turn_number,
        )


_HEAD = dict.fromkeys(
    ("version", "latest_turn_number", "turn", "queue", "name", "agent", "updated_at", "summary_basis", "erased_at"), 1
)
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
        self.store: ConversationStore = _checked(store)
        super().__init__(user, session_id, settings=settings, category=category)
        self.open_turns = store.open_turns
        self.writes = SessionWrites(store, self)
        self._summaries = SummaryWrites(store, self)

    @classmethod
    async def of_key(
        cls, store: ConversationStore, key: str, *, settings: Settings | None = None
    ) -> "MongoSessionManager":
        """Open a session by its key, for a job that knows only that. Raises `NotFound` if its user does not exist."""
        address = await _checked(store).address_of(key)
        if address is None:
            raise NotFound
        return cls(store, address.user, address.session_id, settings=settings, category=address.category)

    @classmethod
    async def to_erase(
        cls, store: ConversationStore, key: str, *, settings: Settings | None = None
    ) -> "MongoSessionManager":
        """Open a session by its key, only to delete it or its user. `user` is empty if the user is deleted already."""
        user_id = key.partition(":")[0]
        with translated():
            user = await _checked(store).users.find_one({"_id": user_id}, {"client_id": 1})
        return cls._to_erase(store, key, user["client_id"] if user else "", settings)

    @classmethod
    def _to_erase(
        cls, store: ConversationStore, key: str, user: str, settings: Settings | None
    ) -> "MongoSessionManager":
        user_id, _, session_id = key.partition(":")
        session = cls(store, user or user_id, session_id, settings=settings)
        session.user = user
        session.user_id, session.key = user_id, session_key(user_id, session.session_id)
        return session

    @trace_method(kind=SpanKind.DB, name="mongodb.head", attributes=_SESSIONS)
    async def head(self, *, erased: bool = False) -> SessionHead | None:
        found = await self._found(erased=erased)
        return head_of(self.store.models, found) if found else None

    @trace_method(kind=SpanKind.DB, name="mongodb.load", attributes=_MESSAGES)
    async def load(self, message_id: str | None = None) -> SessionState:
        found, summary, history = await asyncio.gather(self._found(), self.latest_summary(), self._history(message_id))
        if found is None:
            return SessionState()
        head = head_of(self.store.models, found)
        if not _has_answer(history[1], head):
            history = await self._history(message_id)  # the answer may have been stored after this read
        earlier, recent = history
        messages = with_open(head, [message for message in recent if message.turn_number <= head.latest_turn_number])
        latest = {message.role: message for message in messages if message.turn_number == head.latest_turn_number}
        return SessionState(
            head=head,
            summary=summary,
            turns=turns_of(messages),
            # Between the two reads of the history, the message may have been moved to it.
            earlier=earlier or next((message for message in recent if message.id == message_id), None),
            question=latest.get("user"),
            answer=latest.get("assistant"),
        )

    @trace_method(kind=SpanKind.DB, name="mongodb.find", attributes=_MESSAGES)
    async def find(self, message_id: str) -> SessionMessage | None:
        own = {"session_id": self.key, "client_message_id": message_id}
        joined = {"session_id": self.key, STEERING_ID: message_id}
        return await self._message({"$or": [own, joined]})  # each of the two conditions has its own index

    @trace_method(kind=SpanKind.DB, name="mongodb.messages", attributes=_MESSAGES)
    async def messages(self, first: int, last: int) -> Sequence[SessionMessage]:
        # In this order, a question that is moved to the history between the reads is not missed.
        head = await self.head()
        if head is None:
            return []
        query = {"session_id": self.key, "turn_number": {"$gte": first, "$lte": last}}
        with translated():
            order = [("turn_number", ASCENDING), ("role", DESCENDING)]
            found = self._read(await self.store.messages.find(query).sort(order).to_list())
        return [message for message in with_open(head, found) if first <= message.turn_number <= last]

    @trace_method(kind=SpanKind.DB, name="mongodb.answer", attributes=_MESSAGES)
    async def answer(self, turn_number: int) -> SessionMessage | None:
        return await self._message({"session_id": self.key, "turn_number": turn_number, "role": "assistant"})

    async def write(self, change: Change) -> bool:
        return await self.writes.write(change)

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

    async def latest_summary(self, *, draft: bool = False) -> RollingSummary | None:
        summary = await self._summaries.latest(draft=draft)
        return rolling_summary(summary) if summary else None

    async def add_summary(self, summary: RollingSummary, *, draft: bool = False) -> bool:
        return await self._summaries.add(summary, draft=draft)

    async def publish_draft(self) -> bool:
        return await self._summaries.publish_draft()

    async def drop_summaries(self) -> None:
        await self._summaries.drop()

    @trace_method(kind=SpanKind.DB, name="mongodb.rename", attributes=_SESSIONS)
    async def rename(self, name: str, *, was: str | None) -> bool:
        unchanged = {"_id": self.key, "name": was, "erased_at": None}
        return await self.store.update_session(unchanged, {"name": storable_text(name)}) is not None

    async def erase_some(self, limit: int = 500) -> bool:
        return await Erasure(self.store).erase_some(self.key, limit)

    def sibling(self, key: str) -> "MongoSessionManager":
        return self._to_erase(self.store, key, self.user, self.settings)

    async def _found(self, *, erased: bool = False) -> dict[str, Any] | None:
        alive = {} if erased else {"erased_at": None}
        with translated():
            return await self.store.sessions.find_one({"_id": self.key} | alive, _HEAD)

    async def _history(self, message_id: str | None) -> tuple[SessionMessage | None, list[SessionMessage]]:
        """Return the message with this id, and the newest turns: one more than the model is shown."""
        limit = 2 * (self.settings.context_max_turns + 1)
        if message_id is None:
            return None, await self._newest(limit)
        earlier, newest = await asyncio.gather(self.find(message_id), self._newest(limit))
        return earlier, newest

    async def _newest(self, limit: int) -> list[SessionMessage]:
        order = [("turn_number", DESCENDING), ("role", ASCENDING)]
        with translated():
            found = await self.store.messages.find({"session_id": self.key}).sort(order).limit(limit).to_list()
        return self._read(found[::-1])

    async def _message(self, query: dict[str, Any]) -> SessionMessage | None:
        with translated():
            found = await self.store.messages.find_one(query)
        return session_message(from_bson(self.store.models.message, found)) if found else None

    def _read(self, found: list[dict[str, Any]]) -> list[SessionMessage]:
        return [session_message(message) for message in from_bsons(self.store.models.message, found)]


def with_open(head: SessionHead, messages: list[SessionMessage]) -> list[SessionMessage]:
    """Insert the message that is being answered among those of the history, in order."""
    question = head.turn.message if head.turn is not None else None
    if question is None:
        return messages
    others = [m for m in messages if (m.turn_number, m.role) != (question.turn_number, "user")]
    return sorted([*others, question], key=lambda m: (m.turn_number, m.role != "user"))


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


def _basis(session: Mapping[str, Any]) -> str:
    """Return a session's `summary_basis`, empty before its first change."""
    return session.get("summary_basis") or ""


def _has_answer(messages: Sequence[SessionMessage], head: SessionHead) -> bool:
    """Whether the history is as new as the head: it has the answer of the last turn that ended or waits."""
    turn = head.running
    if turn is not None and turn.message is None:
        return True  # answered again: the previous answer may be missing
    number = head.latest_turn_number if turn is None else turn.number - 1
    return number == 0 or any(m.turn_number == number and m.role == "assistant" for m in messages)
