"""`MongoSessionManager`: a session stored in MongoDB."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pymongo import ASCENDING, DESCENDING, ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession

from omniagent.errors import ConfigurationError, InvalidRequest, NotFound, StorageConflict
from omniagent.messages import Feedback
from omniagent.persistence.documents import STEERING_ID, Summary
from omniagent.persistence.erasure import Erasure
from omniagent.persistence.new_sessions import NewSessions
from omniagent.persistence.store import (
    ConversationStore,
    from_bson,
    from_bsons,
    rolling_summary,
    session_message,
    to_bson,
    translated,
)
from omniagent.persistence.stored_values import now, storable_text
from omniagent.persistence.turn_writes import TurnWrites, UserSlots
from omniagent.session.manager import (
    NOT_AN_ANSWER,
    SessionHead,
    SessionManager,
    SessionMessage,
    SessionState,
    TurnStart,
    new_id,
    session_key,
    turns_of,
)
from omniagent.session.summary_store import TURNS_PER_READ, RollingSummary
from omniagent.session.window import PastTurn
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
    (
        "latest_turn_number",
        "active_turn_id",
        "name",
        "updated_at",
        "latest_turn_id",
        "waiting_until",
        "turn_attempt",
        "summary_basis",
    ),
    1,
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
        self.store = _checked(store)
        super().__init__(user, session_id, settings=settings, category=category)
        self.open_turns = store.open_turns
        self.new_sessions = NewSessions(store, self)
        self._slots = UserSlots(store, self, self.new_sessions)
        self._turns = TurnWrites(store, self, self.new_sessions)
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
    async def head(self) -> SessionHead | None:
        with translated():
            found = await self.store.sessions.find_one({"_id": self.key, "erased_at": None}, _HEAD)
        return _head(found) if found else None

    async def create(self) -> None:
        await self.new_sessions.create_session()

    @trace_method(kind=SpanKind.DB, name="mongodb.load", attributes=_MESSAGES)
    async def load(self, message_id: str | None = None) -> SessionState:
        turns = self.settings.context_max_turns + 1
        found, summary, earlier, recent = await asyncio.gather(
            self._found(), self.latest_summary(), self._message_by_id(message_id), self._newest(turns)
        )
        if found is None:
            return SessionState()
        head = _head(found)
        if head.active_turn_id is None and not _has_answer(recent, head.latest_turn_number):
            recent = await self._newest(turns)  # the answer may have been stored after this read
        messages = [message for message in recent if message.turn_number <= head.latest_turn_number]
        messages = self._with_open(found, messages)
        latest = {message.role: message for message in messages if message.turn_number == head.latest_turn_number}
        return SessionState(
            head=head,
            summary=summary,
            turns=turns_of(messages),
            # The open question may have been moved to the messages between the reads.
            earlier=earlier or next((message for message in messages if message.id == message_id), None),
            question=latest.get("user"),
            answer=latest.get("assistant"),
        )

    @trace_method(kind=SpanKind.DB, name="mongodb.find", attributes=_MESSAGES)
    async def find(self, message_id: str) -> SessionMessage | None:
        # In this order, a question that is moved to the messages between the reads is not missed.
        is_open = {"_id": self.key, "open_question.client_message_id": message_id}
        with translated():
            found = await self.store.sessions.find_one(is_open, {"open_question": 1})
        return self._read([found["open_question"]])[0] if found else await self._message_by_id(message_id)

    @trace_method(kind=SpanKind.DB, name="mongodb.messages", attributes=_MESSAGES)
    async def messages(self, first: int, last: int) -> Sequence[SessionMessage]:
        # In this order, a question that is moved to the messages between the reads is not missed.
        with translated():
            session = await self.store.sessions.find_one({"_id": self.key, "erased_at": None}, {"open_question": 1})
        if session is None:
            return []
        messages = self._with_open(session, await self._between(first, last))
        return [message for message in messages if first <= message.turn_number <= last]

    @trace_method(kind=SpanKind.DB, name="mongodb.answer", attributes=_MESSAGES)
    async def answer(self, turn_number: int) -> SessionMessage | None:
        return await self._message({"session_id": self.key, "turn_number": turn_number, "role": "assistant"})

    async def admit(self, limit: int, turn_id: str) -> Sequence[str]:
        return await self._slots.admit(limit, turn_id)

    async def withdraw(self, *slots: str) -> None:
        await self._slots.withdraw(*slots)

    async def begin_turn(self, start: TurnStart) -> None:
        await self._turns.begin(start)

    async def finish_turn(self, answer: SessionMessage, *, attempt: int = 0) -> SessionMessage:
        return await self._turns.finish(answer, attempt)

    async def repair_turn(self, answer: SessionMessage) -> SessionMessage | None:
        return await self._turns.repair(answer)

    async def change_waiting(self, answer: SessionMessage, *, seen_turn_id: str | None) -> None:
        await self._turns.change_waiting(answer, seen_turn_id)

    @trace_method(kind=SpanKind.DB, name="mongodb.rate", attributes=_MESSAGES)
    async def rate(self, message_id: str, feedback: Feedback | None) -> SessionMessage:
        at = {"session_id": self.key, "client_message_id": message_id}
        stored = None
        if feedback is not None:
            stored = {**feedback.model_dump(), "text": feedback.text and storable_text(feedback.text)}

        async def work(transaction: AsyncClientSession) -> dict[str, Any]:
            alive = {"_id": self.key, "erased_at": None}
            session = await self.store.sessions.find_one(alive, {"open_question": 1}, session=transaction)
            message = await self.store.messages.find_one(at, {"role": 1}, session=transaction)
            if session is not None and is_open(session, message_id):
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

    async def drop_summaries(self) -> None:
        await self._summaries.drop()

    @trace_method(kind=SpanKind.DB, name="mongodb.rename", attributes=_SESSIONS)
    async def rename(self, name: str, *, was: str | None) -> bool:
        unchanged = {"_id": self.key, "name": was, "erased_at": None}
        return await self.store.update_session(unchanged, {"name": storable_text(name)}) is not None

    async def mark_erased(self) -> bool:
        return await Erasure(self.store).mark_erased(self.key)

    async def erase_some(self, limit: int = 500) -> bool:
        return await Erasure(self.store).erase_some(self.key, limit)

    async def mark_user_erased(self, limit: int = 500) -> bool:
        return await Erasure(self.store).mark_user_erased(self.user_id, limit)

    async def user_is_erased(self) -> bool:
        return await Erasure(self.store).user_is_erased(self.user_id)

    async def sessions_of_user(
        self, limit: int = 500, *, before: datetime | None = None
    ) -> "Sequence[MongoSessionManager]":
        keys = await Erasure(self.store).session_keys(self.user_id, limit=limit, before=before)
        return [self._to_erase(self.store, key, self.user, self.settings) for key in keys]

    async def forget_user(self) -> bool:
        return await Erasure(self.store).forget_user(self.user_id)

    @trace_method(kind=SpanKind.DB, name="mongodb.head", attributes=_SESSIONS)
    async def _found(self) -> dict[str, Any] | None:
        with translated():
            return await self.store.sessions.find_one(
                {"_id": self.key, "erased_at": None}, _HEAD | {"open_question": 1}
            )

    def _with_open(self, session: dict[str, Any], messages: list[SessionMessage]) -> list[SessionMessage]:
        """Insert the session's open question among the messages, in order."""
        if session.get("open_question") is None:
            return messages
        [question] = self._read([session["open_question"]])
        others = [m for m in messages if (m.turn_number, m.role) != (question.turn_number, "user")]
        return sorted([*others, question], key=lambda m: (m.turn_number, m.role != "user"))

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
        if message_id is None:
            return None
        # Each of the two conditions has its own index.
        own = {"session_id": self.key, "client_message_id": message_id}
        joined = {"session_id": self.key, STEERING_ID: message_id}
        return await self._message({"$or": [own, joined]})

    async def _message(self, query: dict[str, Any]) -> SessionMessage | None:
        with translated():
            found = await self.store.messages.find_one(query)
        return session_message(from_bson(self.store.models.message, found)) if found else None

    def _read(self, found: list[dict[str, Any]]) -> list[SessionMessage]:
        return [session_message(message) for message in from_bsons(self.store.models.message, found)]


def is_open(session: Mapping[str, Any], message_id: str) -> bool:
    """Whether this message is the open question of a session (as stored): its turn has not ended."""
    question = session.get("open_question")
    return question is not None and question["client_message_id"] == message_id


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


def _head(found: dict[str, Any]) -> SessionHead:
    return SessionHead(
        latest_turn_number=found["latest_turn_number"],
        active_turn_id=found.get("active_turn_id"),
        name=found.get("name"),
        changed_at=found.get("updated_at"),
        latest_turn_id=found.get("latest_turn_id"),
        waiting_until=found.get("waiting_until"),
        attempt=found.get("turn_attempt", 0),
        summary_basis=_basis(found),
    )


def _basis(session: Mapping[str, Any]) -> str:
    """Return a session's `summary_basis`, empty before its first change."""
    return session.get("summary_basis") or ""


def _has_answer(messages: Sequence[SessionMessage], turn_number: int) -> bool:
    return turn_number == 0 or any(m.turn_number == turn_number and m.role == "assistant" for m in messages)
