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
from omniagent.persistence.documents import Session
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.store import ConversationStore, to_bson
from omniagent.persistence.stored_session import fields_of, message_document
from omniagent.session.live import Change, SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.tracing import SpanKind, trace_method

logger = logging.getLogger(__name__)

AT_ONCE_SECONDS: Final = 1.0
"""Timeout of the single update. After it, a transaction is used, which can end a dead one's lock."""
_SESSIONS = {"db.collection.name": "sessions"}


class SessionWrites(SessionManager):
    """The writes of a session in MongoDB."""

    store: ConversationStore

    @trace_method(kind=SpanKind.DB, name="mongodb.write", attributes=_SESSIONS)
    async def write(self, change: Change) -> bool:
        """Apply a change. See `SessionManager.write`."""
        turn, before = change.after.turn, change.before.turn
        asked = turn.message if turn is not None and (before is None or before.id != turn.id) else None
        question = message_document(self.store.models, self.key, asked) if asked is not None else None
        fields = fields_of(change, await self.store.fill(question, self) if question is not None else None)
        if self.category is not None:
            fields["category"] = self.category
        if change.before.version == 0:
            return await self._insert(fields)
        unchanged = {"_id": self.key, "version": change.before.version, "erased_at": None}
        if not change.inserted and not change.changed:
            try:
                with translated(), pymongo.timeout(AT_ONCE_SECONDS):
                    updated = await self.store.sessions.update_one(unchanged, {"$set": fields})
                    return bool(updated.matched_count) or await self._is_applied(change)
            except StorageError as exc:
                # If the write did succeed, the transaction finds it.
                logger.warning("session not written at once", extra={"cause": str(exc)})
        open_question = before.message if before is not None else None
        new = [await self._document(message) for message in change.inserted if message is not open_question]
        changed = self._changed_answers(change) if change.changed else {}

        async def work(transaction: AsyncClientSession) -> bool:
            # The open question is moved as raw BSON: a decoded field might not be encodable again.
            raw_sessions = self.store.sessions.with_options(codec_options=DEFAULT_RAW_BSON_OPTIONS)
            stored = await raw_sessions.find_one_and_update(unchanged, {"$set": fields}, session=transaction)
            if stored is None:
                return await self._is_applied(change, transaction)
            for node, values in changed.items():
                at = {"_id": node, "session_id": self.key}
                if not (await self.store.messages.update_one(at, {"$set": values}, session=transaction)).matched_count:
                    raise StorageConflict(f"answer {node} does not wait any more")
            moved: list[Any] = [stored["turn"]["message"]] if len(new) < len(change.inserted) else []
            if moved or new:
                await self.store.messages.insert_many([*moved, *new], session=transaction)
            return True

        return await self.store.transaction(work)

    async def create(self, document: Session) -> bool:
        """Insert a session without turns. Returns False if it exists."""
        return await self._insert({}, document)

    async def ensure_user(self) -> None:
        """Create the user's document, unless it exists. Raises `SessionErased` if the user is being deleted."""
        with translated():
            user = await self.store.users.find_one({"_id": self.user_id}, {"erased_at": 1})
        if user is None:
            document = self.store.models.user(id=self.user_id, client_id=self.user)
            fields = to_bson(await self.store.fill(document, self))
            with translated():
                user = await self.store.users.find_one_and_update(
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
        has_hook = self.store.models.fill is not None
        if has_hook and (found := await self._existing()) is not None:  # the hook sees only new documents
            return _is_written(found, fields)
        await self.ensure_user()
        if document is None:
            document = self.store.models.session(id=self.key, user_id=self.user_id)
        stored = to_bson(await self.store.fill(document, self)) | fields
        try:
            with translated():
                await self.store.sessions.insert_one(stored)
        except StorageConflict:
            found = await self._existing()
            return found is not None and _is_written(found, fields)
        return True

    async def _existing(self) -> dict[str, Any] | None:
        """Read the session, if it exists. Raises `SessionErased` while it is being deleted."""
        with translated():
            found = await self.store.sessions.find_one({"_id": self.key}, {"erased_at": 1, "change": 1})
        if found is not None and found.get("erased_at") is not None:
            raise SessionErased
        return found

    async def _is_applied(self, change: Change, transaction: AsyncClientSession | None = None) -> bool:
        """Whether the change is the session's last: an earlier try succeeded and its reply was lost."""
        last = {"_id": self.key, "change": change.id}
        return await self.store.sessions.find_one(last, {"_id": 1}, session=transaction) is not None

    async def _document(self, message: SessionMessage) -> dict[str, Any]:
        """Return a message as it is stored. An answer's tokens are paid for: if `fill` fails, it gets defaults."""
        document = message_document(self.store.models, self.key, message)
        document = await self.store.fill(document, self, is_paid=True)
        document.feedback = None
        is_announced = message.role == "assistant" and self.settings.webhook_url
        return to_bson(document) | (_UNANNOUNCED if is_announced else {})

    def _changed_answers(self, change: Change) -> dict[str, dict[str, Any]]:
        """Return what is set in answers that waited, by their nodes. A reply alone is no event for the webhook."""
        is_reply = change.before.waiting is not None and change.after.turn is not None
        event = _UNANNOUNCED if self.settings.webhook_url and not is_reply else {}
        documents = {each.node: to_bson(message_document(self.store.models, self.key, each)) for each in change.changed}
        return {node: {name: each[name] for name in _CHANGED} | event for node, each in documents.items()}


_CHANGED: Final = ("parts", "status", "metadata", "requests", "asker", "usage", "trace", "run")
"""The fields of an answer that change while it waits. Feedback and a team's own fields stay."""
_UNANNOUNCED: Final = {"announced": ""}
"""The mark of an answer whose event is still to be queued for the webhook."""


def _is_written(found: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether a session was inserted by an earlier try, whose reply was lost."""
    return bool(fields) and found.get("change") == fields["change"]
