"""The one write of a session: a `Change`, applied by compare-and-set of the session's version.

A change of the live state alone is a single update. One that also changes the history is a transaction. The first
change of a session inserts it.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

import pymongo
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS
from pymongo import ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession

from omniagent.errors import SessionErased, StorageConflict, StorageError
from omniagent.persistence.documents import Message, Session
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.live_state import fields_of, without_open_question
from omniagent.persistence.store import ConversationStore, message_document, to_bson
from omniagent.session.live import Change, SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.tracing import SpanKind, trace_method

logger = logging.getLogger(__name__)

AT_ONCE_SECONDS: Final = 1.0
"""Timeout of the single update. After it, a transaction is used, which can end a dead one's lock."""
_SESSIONS = {"db.collection.name": "sessions"}


class SessionWrites:
    """The writes of one session."""

    def __init__(self, store: ConversationStore, session: SessionManager) -> None:
        self._store = store
        self._session = session
        # Moves a question as raw BSON: a decoded field might not be encodable again.
        self._raw_sessions = store.sessions.with_options(codec_options=DEFAULT_RAW_BSON_OPTIONS)

    @trace_method(kind=SpanKind.DB, name="mongodb.write", attributes=_SESSIONS)
    async def write(self, change: Change) -> bool:
        """Apply a change. See `SessionManager.write`."""
        fields = fields_of(change, await self._question(change))
        if self._session.category is not None:
            fields["category"] = self._session.category
        if change.before.version == 0:
            return await self._insert(fields)
        if not change.has_history and (is_applied := await self._update(change, fields)) is not None:
            return is_applied
        documents = [await self._document(message) for message in without_open_question(change).inserted]

        async def work(transaction: AsyncClientSession) -> bool:
            before = await self._raw_sessions.find_one_and_update(
                self._version(change), {"$set": fields}, session=transaction
            )
            if before is None:
                return await self._is_applied(change, transaction)
            await self._write_history(change, before, documents, transaction)
            return True

        return await self._store.transaction(work)

    async def create(self, document: Session) -> bool:
        """Insert a session without turns. Returns False if it exists."""
        return await self._insert({}, document)

    async def ensure_user(self) -> None:
        """Create the user's document, unless it exists. Raises `SessionErased` if the user is being deleted."""
        session = self._session
        with translated():
            user = await self._store.users.find_one({"_id": session.user_id}, {"erased_at": 1})
        if user is None:
            document = self._store.models.user(id=session.user_id, client_id=session.user)
            fields = to_bson(await self._store.fill(document, session))
            with translated():
                user = await self._store.users.find_one_and_update(
                    {"_id": fields.pop("_id")},
                    {"$setOnInsert": fields},
                    projection={"erased_at": 1},
                    upsert=True,
                    return_document=ReturnDocument.AFTER,
                )
        if user is not None and user.get("erased_at") is not None:
            raise SessionErased("the user is being deleted")

    async def _insert(self, fields: dict[str, Any], document: Session | None = None) -> bool:
        """Insert the session, unless it exists. Raises `SessionErased` if it or its user is being deleted.

        If the user is marked between the check and the insert, the sweep deletes the session: the mark stays longer
        than any insert takes.
        """
        session, has_hook = self._session, self._store.models.fill is not None
        if has_hook and (found := await self._existing()) is not None:  # the hook sees only new documents
            return _is_written(found, fields)
        await self.ensure_user()
        if document is None:
            document = self._store.models.session(id=session.key, user_id=session.user_id)
        stored = to_bson(await self._store.fill(document, session)) | fields
        try:
            with translated():
                await self._store.sessions.insert_one(stored)
        except StorageConflict:
            found = await self._existing()
            return found is not None and _is_written(found, fields)
        return True

    async def _existing(self) -> dict[str, Any] | None:
        """Read the session, if it exists. Raises `SessionErased` while it is being deleted."""
        with translated():
            found = await self._store.sessions.find_one({"_id": self._session.key}, {"erased_at": 1, "change": 1})
        if found is not None and found.get("erased_at") is not None:
            raise SessionErased
        return found

    async def _update(self, change: Change, fields: dict[str, Any]) -> bool | None:
        """Apply a change that has no history, in one write. None: a transaction must try."""
        try:
            with translated(), pymongo.timeout(AT_ONCE_SECONDS):
                updated = await self._store.sessions.update_one(self._version(change), {"$set": fields})
                return bool(updated.matched_count) or await self._is_applied(change)
        except StorageError as exc:
            # If the write did succeed, the transaction finds it.
            logger.warning("session not written at once", extra={"cause": str(exc)})
            return None

    def _version(self, change: Change) -> dict[str, Any]:
        return {"_id": self._session.key, "version": change.before.version, "erased_at": None}

    async def _is_applied(self, change: Change, transaction: AsyncClientSession | None = None) -> bool:
        """Whether the change is the session's last: an earlier try succeeded and its reply was lost."""
        last = {"_id": self._session.key, "change": change.id}
        return await self._store.sessions.find_one(last, {"_id": 1}, session=transaction) is not None

    async def _question(self, change: Change) -> Message | None:
        """Return the filled document of the message that begins a turn."""
        turn, before = change.after.turn, change.before.turn
        if turn is None or turn.message is None or (before is not None and before.id == turn.id):
            return None
        document = message_document(self._store.models, self._session.key, turn.message)
        return await self._store.fill(document, self._session)

    async def _document(self, message: SessionMessage) -> dict[str, Any]:
        """Return a message as it is stored. An answer's tokens are paid for: if `fill` fails, it gets defaults."""
        models, key = self._store.models, self._session.key
        document = await self._store.fill_or_default(lambda: message_document(models, key, message), self._session)
        document.feedback = None
        return to_bson(document) | (self._event if message.role == "assistant" else {})

    @property
    def _event(self) -> dict[str, Any]:
        """The mark of an answer whose event is still to be queued for the webhook."""
        return {"announced": ""} if self._session.settings.webhook_url else {}

    def _owed_event(self, change: Change) -> dict[str, Any]:
        """Return the mark for an answer that ends or waits. A reply alone is no event."""
        is_reply = change.before.waiting is not None and change.after.turn is not None
        return {} if is_reply else self._event

    async def _write_history(
        self,
        change: Change,
        before: Mapping[str, Any],
        documents: list[dict[str, Any]],
        transaction: AsyncClientSession,
    ) -> None:
        key, messages = self._session.key, self._store.messages
        for answer in change.changed:
            document = to_bson(message_document(self._store.models, key, answer))
            at = {"_id": answer.node, "session_id": key}
            changes = {name: document[name] for name in _CHANGED} | self._owed_event(change)
            if not (await messages.update_one(at, {"$set": changes}, session=transaction)).matched_count:
                raise StorageConflict(f"answer {answer.id} does not wait any more")
        moved = [before["turn"]["message"]] if _moves_question(change) else []
        if moved or documents:
            await messages.insert_many([*moved, *documents], session=transaction)


_CHANGED: Final = ("parts", "status", "metadata", "requests", "asker", "usage", "trace", "run")
"""The fields of an answer that change while it waits. Feedback and a team's own fields stay."""


def _is_written(found: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether a session was inserted by an earlier try, whose reply was lost."""
    return bool(fields) and found.get("change") == fields["change"]


def _moves_question(change: Change) -> bool:
    turn = change.before.turn
    return turn is not None and turn.message is not None and any(each is turn.message for each in change.inserted)
