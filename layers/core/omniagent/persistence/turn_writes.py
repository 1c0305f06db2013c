"""The writes that begin, finish and repair a turn. Each is atomic and fenced by the session's document.

A new turn of an existing session begins with one write: its question is stored in the session's document until the
turn ends. The transaction that stores the answer moves it to the messages. Every other begin is a transaction, and so
are finish and repair.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pymongo
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS
from pymongo import ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession

from omniagent.errors import SessionErased, StorageConflict, StorageError, TurnLost
from omniagent.persistence.documents import STEERING_ID, Message
from omniagent.persistence.new_sessions import USER_ERASED, NewSessions
from omniagent.persistence.store import (
    ConversationStore,
    from_bson,
    message_document,
    session_message,
    to_bson,
    translated,
)
from omniagent.persistence.stored_values import now
from omniagent.session.manager import SessionManager, SessionMessage, TurnStart, new_id, slot_of
from omniagent.tracing import SpanKind, trace_method

logger = logging.getLogger(__name__)

AT_ONCE_SECONDS: Final = 1.0
"""Timeout of the single write that begins a turn. After it, a transaction is used, which can end a dead one's lock."""
_USERS = {"db.collection.name": "users"}


class UserSlots:
    """The running-turn slots of one session's user.

    No transaction ever writes the user's document: one that a dead process left open would lock the user out.
    """

    def __init__(self, store: ConversationStore, session: SessionManager, new_sessions: NewSessions) -> None:
        self._store = store
        self._session = session
        self._new = new_sessions

    @trace_method(kind=SpanKind.DB, name="mongodb.admit", attributes=_USERS)
    async def admit(self, limit: int, turn_id: str) -> Sequence[str]:
        """Take a slot for a turn of this session. See `SessionManager.admit`."""
        slot = slot_of(self._session.key, turn_id)
        while True:
            user = await self._take_slot(limit, slot) or await self._new.insert_user([slot])
            if user.get("erased_at") is not None:
                raise SessionErased(USER_ERASED)
            self._new.user_is_known = True
            running: list[str] = user.get("running") or []
            if slot in running:
                return ()
            if len(running) >= limit:
                return running

    @trace_method(kind=SpanKind.DB, name="mongodb.withdraw", attributes=_USERS)
    async def withdraw(self, *slots: str) -> None:
        """Release slots. See `SessionManager.withdraw`."""
        with translated():
            await self._store.users.update_one({"_id": self._session.user_id}, {"$pullAll": {"running": list(slots)}})

    async def _take_slot(self, limit: int, slot: str) -> dict[str, Any] | None:
        running = {"$ifNull": ["$running", []]}
        session_of_slot = {"$arrayElemAt": [{"$split": ["$$slot", "#"]}, 0]}
        is_another = {"$ne": [session_of_slot, self._session.key]}
        others = {"$filter": {"input": running, "as": "slot", "cond": is_another}}
        taken = {"$concatArrays": [others, [slot]]}
        changes: dict[str, Any] = {"running": {"$cond": [{"$lt": [{"$size": others}, limit]}, taken, running]}}
        if self._session.category is not None:
            changes["category"] = {"$literal": self._session.category}
        with translated():
            return await self._store.users.find_one_and_update(
                {"_id": self._session.user_id, "erased_at": None},
                [{"$set": changes}],
                projection={"running": 1},
                return_document=ReturnDocument.AFTER,
            )


_MESSAGES = {"db.collection.name": "messages"}


class TurnWrites:
    """The writes of one session's turns."""

    def __init__(self, store: ConversationStore, session: SessionManager, new_sessions: NewSessions) -> None:
        self._store = store
        self._session = session
        self._new = new_sessions
        # Moves a question as raw BSON: a decoded field might not be encodable again.
        self._raw_sessions = store.sessions.with_options(codec_options=DEFAULT_RAW_BSON_OPTIONS)

    @trace_method(kind=SpanKind.DB, name="mongodb.begin_turn", attributes=_MESSAGES)
    async def begin(self, start: TurnStart) -> None:
        """Store the user's message and fence the session. See `SessionManager.begin_turn`."""
        if start.attempt:
            await self._continue(start)
            return
        message = None if start.again else await self._question(start)
        if message is not None and await self._begin_at_once(start, message):
            return
        new_session = await self._new.new_session() if start.turn_number == 1 and not start.again else None

        async def work(transaction: AsyncClientSession) -> bool:
            is_new = new_session is not None and await self._new.insert_session(new_session, transaction)
            if not await self._advance(start, transaction):
                await self._refuse(start, transaction)
                return is_new
            if start.waited is not None:
                await self._put_waiting(start.waited, transaction)
            if message is not None:
                if start.was_posted:
                    await self._refuse_joined(start, transaction)
                await self._store.messages.insert_one(to_bson(message), session=transaction)
            return is_new

        if await self._store.transaction(work):
            await self._new.check_not_erased()

    @trace_method(kind=SpanKind.DB, name="mongodb.finish_turn", attributes=_MESSAGES)
    async def finish(self, answer: SessionMessage, attempt: int = 0) -> SessionMessage:
        """Store an answer and free the session. See `SessionManager.finish_turn`."""
        answer, document = await self._answer(answer)
        held = {"active_turn_id": answer.fence, "turn_attempt": attempt}

        async def work(transaction: AsyncClientSession) -> SessionMessage:
            session = await self._release(answer, held, transaction)
            if session is None:
                return await self._finish_late(answer, attempt, document, transaction)
            return await self._conclude(session, answer, document, transaction)

        return await self._store.transaction(work)

    @trace_method(kind=SpanKind.DB, name="mongodb.repair_turn", attributes=_MESSAGES)
    async def repair(self, answer: SessionMessage) -> SessionMessage | None:
        """Close a dead turn. See `SessionManager.repair_turn`."""
        answer, document = await self._answer(answer)

        async def work(transaction: AsyncClientSession) -> SessionMessage | None:
            session = await self._release(answer, {"active_turn_id": answer.fence}, transaction)
            if session is None:
                return None
            document.turn_number = session["latest_turn_number"]
            return await self._conclude(session, session_message(document), document, transaction)

        return await self._store.transaction(work)

    @trace_method(kind=SpanKind.DB, name="mongodb.change_waiting", attributes=_MESSAGES)
    async def change_waiting(self, answer: SessionMessage, seen_turn_id: str | None) -> None:
        """Store a waiting answer that was partly answered, or is closed. See `SessionManager.change_waiting`."""
        free = {"_id": self._session.key, "active_turn_id": None, "erased_at": None}
        changes = {"latest_turn_id": answer.turn_id, "waiting_until": answer.waiting_until}

        async def work(transaction: AsyncClientSession) -> None:
            sessions = self._store.sessions
            seen = free | {"latest_turn_id": seen_turn_id}
            if (await sessions.update_one(seen, {"$set": changes}, session=transaction)).matched_count:
                await self._put_waiting(answer, transaction)
            elif not await sessions.find_one(
                free | {"latest_turn_id": answer.turn_id}, {"_id": 1}, session=transaction
            ):
                raise StorageConflict(f"answer {answer.id} does not wait any more")

        await self._store.transaction(work)

    async def _question(self, start: TurnStart) -> Message:
        question = SessionMessage(start.message_id, "user", start.turn_number, start.parts)
        document = message_document(self._store.models, self._session.key, question)
        return await self._store.fill(document, self._session)

    async def _answer(self, answer: SessionMessage) -> tuple[SessionMessage, Message]:
        models, key = self._store.models, self._session.key
        document = await self._store.fill_or_default(lambda: message_document(models, key, answer), self._session)
        return replace(session_message(document), turn_id=answer.turn_id), document

    async def _begin_at_once(self, start: TurnStart, message: Message) -> bool:
        """Fence the session and store the message in it, in one write. False: a transaction must begin the turn.

        Only for a turn that was planned from the session's latest run. If no turn has begun since, the session cannot
        have another message with this id, so no transaction is needed to check for one.
        """
        if start.seen_turn_id is None or start.waited is not None or start.was_posted:
            return False
        seen = self._free(start) | {"latest_turn_id": start.seen_turn_id}
        taken = _taken(start) | {"open_question": to_bson(message)}
        try:
            with translated(), pymongo.timeout(AT_ONCE_SECONDS):
                updated = await self._store.sessions.update_one(seen, {"$set": taken})
        except StorageError as exc:
            # If the write did succeed, the transaction finds that the turn has begun.
            logger.warning("turn not begun at once", extra={"cause": str(exc)})
            return False
        return bool(updated.matched_count)

    async def _advance(self, start: TurnStart, transaction: AsyncClientSession) -> bool:
        """Fence the session if it is free and in the state that the turn was planned from (compare and set)."""
        seen = self._free(start)
        if start.waited is not None:
            seen["latest_turn_id"] = start.seen_turn_id
        updated = await self._store.sessions.update_one(seen, {"$set": _taken(start)}, session=transaction)
        return bool(updated.matched_count)

    def _free(self, start: TurnStart) -> dict[str, Any]:
        before = start.turn_number if start.again else start.turn_number - 1
        return {"_id": self._session.key, "active_turn_id": None, "erased_at": None, "latest_turn_number": before}

    async def _put_waiting(self, answer: SessionMessage, transaction: AsyncClientSession) -> None:
        """Update a waiting answer in place, so that the team's own fields are kept."""
        fields = to_bson(message_document(self._store.models, self._session.key, answer))
        changes = {name: fields[name] for name in ("parts", "status", "metadata", "requests", "asker")}
        waiting = {"session_id": self._session.key, "client_message_id": answer.id, "status": "waiting"}
        changed = await self._store.messages.update_one(waiting, {"$set": changes}, session=transaction)
        if not changed.matched_count:
            raise StorageConflict(f"answer {answer.id} does not wait any more")

    async def _refuse(self, start: TurnStart, transaction: AsyncClientSession) -> None:
        """Raise the reason why the turn cannot begin, unless it has begun, by a write whose outcome was unknown."""
        session = await self._store.sessions.find_one(
            {"_id": self._session.key}, {"erased_at": 1, "active_turn_id": 1}, session=transaction
        )
        if session is not None and session.get("erased_at") is not None:
            raise SessionErased
        if session is None or session.get("active_turn_id") != start.turn_id:
            raise StorageConflict(f"turn {start.turn_number} cannot begin: the session has moved on")

    async def _refuse_joined(self, start: TurnStart, transaction: AsyncClientSession) -> None:
        """Refuse a message that has already joined an answer, stored by a process that was presumed dead."""
        joined = {"session_id": self._session.key, STEERING_ID: start.message_id}
        if await self._store.messages.find_one(joined, {"_id": 1}, session=transaction):
            raise StorageConflict(f"turn {start.turn_number} cannot begin: its message has joined another")

    async def _continue(self, start: TurnStart) -> None:
        """Fence a turn that has begun for a later attempt."""
        held: dict[str, Any] = {"_id": self._session.key, "active_turn_id": start.turn_id, "erased_at": None}
        held["turn_attempt"] = {"$lte": start.attempt}
        if await self._store.update_session(held, {"turn_attempt": start.attempt}) is None:
            raise StorageConflict(f"turn {start.turn_id} cannot be continued: the session has moved on")

    async def _release(
        self, answer: SessionMessage, held: dict[str, Any], transaction: AsyncClientSession
    ) -> Mapping[str, Any] | None:
        """Free the session and return its previous state, or None if `held` does not match."""
        free = {"active_turn_id": None, "open_question": None, "updated_at": now()}
        free["waiting_until"] = answer.waiting_until
        return await self._raw_sessions.find_one_and_update(
            {"_id": self._session.key} | held, {"$set": free}, session=transaction
        )

    async def _conclude(
        self, session: Mapping[str, Any], answer: SessionMessage, document: Message, transaction: AsyncClientSession
    ) -> SessionMessage:
        """Store the answer of a released turn, and the question that was open in its session."""
        if (question := session.get("open_question")) is not None:  # a new turn, which has no answer yet
            document.feedback = None
            await self._store.messages.insert_many([question, to_bson(document)], session=transaction)
            return session_message(document)
        previous = await self._stored_answer(answer.turn_number, transaction)
        stored = await self._put(answer, document, previous, transaction)
        if stored.id != answer.id:
            await self._note_waiting(stored, transaction)
        return stored

    async def _note_waiting(self, stored: SessionMessage, transaction: AsyncClientSession) -> None:
        """Set `waiting_until` of the session for a waiting answer that is not the one that freed it."""
        if stored.waiting_until is not None:
            waits = {"$set": {"waiting_until": stored.waiting_until}}
            await self._store.sessions.update_one({"_id": self._session.key}, waits, session=transaction)

    async def _finish_late(
        self, answer: SessionMessage, attempt: int, document: Message, transaction: AsyncClientSession
    ) -> SessionMessage:
        """Finish a turn that no longer holds its session: it was stored already, closed by a repair, or taken over."""
        untouched = {
            "_id": self._session.key,
            "active_turn_id": None,
            "latest_turn_id": answer.fence,
            "erased_at": None,
        }
        taken_over = {"_id": self._session.key, "active_turn_id": answer.fence}
        fence = {"$set": {"fence": new_id()}}
        session = await self._store.sessions.find_one_and_update(untouched, fence, session=transaction)
        if session is not None:
            stored = await self._stored_answer(answer.turn_number, transaction)
            if stored is not None and (stored.id != answer.id or _is_cut_short(stored, answer)):
                late = await self._put(answer, document, stored, transaction)
                await self._note_waiting(late, transaction)
                return late
            if session["turn_attempt"] != attempt:
                stored = None  # another process finished the turn, perhaps with other words
        elif await self._store.sessions.find_one(taken_over, {"_id": 1}, session=transaction):
            stored = None  # what has its id is the waiting answer that its turn continues
        else:
            stored = await self._message({"client_message_id": answer.id}, transaction)
        if stored is None or _is_cut_short(stored, answer):
            raise TurnLost(f"turn {answer.id} no longer holds its session")
        return stored

    async def _put(
        self,
        answer: SessionMessage,
        document: Message,
        previous: SessionMessage | None,
        transaction: AsyncClientSession,
    ) -> SessionMessage:
        """Store the answer, unless it is empty and the turn has another one. The same answer keeps its feedback."""
        document.feedback = previous.feedback if previous is not None and previous.id == answer.id else None
        if previous is not None:
            if not answer.replaces(previous):
                return previous
            at = {"session_id": self._session.key, "turn_number": previous.turn_number, "role": "assistant"}
            await self._store.messages.delete_one(at, session=transaction)
        await self._store.messages.insert_one(to_bson(document), session=transaction)
        return session_message(document)

    async def _stored_answer(self, turn_number: int, transaction: AsyncClientSession) -> SessionMessage | None:
        return await self._message({"turn_number": turn_number, "role": "assistant"}, transaction)

    async def _message(self, query: dict[str, Any], transaction: AsyncClientSession) -> SessionMessage | None:
        found = await self._store.messages.find_one({"session_id": self._session.key} | query, session=transaction)
        return session_message(from_bson(self._store.models.message, found)) if found else None


def _taken(start: TurnStart) -> dict[str, Any]:
    """Return the session's fields while the turn runs."""
    return {
        "latest_turn_number": start.turn_number,
        "active_turn_id": start.turn_id,
        "latest_turn_id": start.turn_id,
        "turn_attempt": 0,
        "waiting_until": None,
        "updated_at": now(),
    }


def _is_cut_short(stored: SessionMessage, answer: SessionMessage) -> bool:
    """Whether a repair has stored the turn as interrupted although it has ended."""
    return stored.status == "interrupted" and answer.status != "interrupted"
