"""`MongoSessionManager`: a session stored in MongoDB.

All turns are written by one method, `write`: a `Change`, applied by compare-and-set of the session's version. A change
of the live state alone is a single update. One that also changes the history is a transaction. The first change of a
session inserts it.
"""

import inspect
import logging
from collections.abc import Sequence
from typing import Any, Final

import pymongo
from beanie import Document
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS
from pymongo import ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import DuplicateKeyError

from omniagent.errors import (
    ConfigurationError,
    NotFound,
    OmniAgentError,
    SessionErased,
    StorageConflict,
    StorageError,
)
from omniagent.messages import Feedback
from omniagent.persistence.documents import IS_BUSY, UNANNOUNCED, fill_own_fields
from omniagent.persistence.driver_errors import on_mongodb, translated
from omniagent.persistence.mongo_history import SUMMARY, MongoHistory
from omniagent.persistence.store import WITHOUT_MESSAGES, ConversationStore
from omniagent.persistence.stored_session import (
    fields_of,
    message_fields,
    message_of,
    now,
    storable_text,
    to_bson,
    turn_of,
)
from omniagent.session.ids import new_id
from omniagent.session.live import Change, LiveTurn, Place, SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.session.window import RollingSummary
from omniagent.settings import Settings
from omniagent.team_code import team_code

logger = logging.getLogger(__name__)

AT_ONCE_SECONDS: Final = 1.0
"""Timeout of the single update. After it, a transaction is used, which can end a dead one's lock."""
_CHANGED: Final = ("parts", "status", "metadata", "requests", "asker", "usage", "trace", "run")
"""The fields of an answer that change while it waits. Feedback and a team's own fields stay."""


class MongoSessionManager(MongoHistory, SessionManager):
    """Reads and writes one session through the store that `MongoBackendAdapter.initialize()` returned."""

    store: ConversationStore

    def __init__(
        self,
        store: ConversationStore,
        user: str,
        session_id: str | None = None,
        *,
        settings: Settings | None = None,
        category: str | None = None,
    ) -> None:
        opened: Any = store
        if inspect.iscoroutine(opened):
            opened.close()  # otherwise Python warns that it was never awaited
            raise ConfigurationError("the store is a coroutine: write `store = await adapter.initialize()`")
        if not isinstance(opened, ConversationStore):
            raise ConfigurationError(
                f"the store is {store!r}: pass what `await MongoBackendAdapter(…).initialize()` returned, "
                "or use InMemorySessionManager, which needs none"
            )
        self.store = opened
        SessionManager.__init__(self, user, session_id, settings=settings, category=category)
        self.open_turns = store.open_turns

    @classmethod
    async def of_key(
        cls, store: ConversationStore, key: str, *, settings: Settings | None = None
    ) -> "MongoSessionManager":
        """Open a session by its key, for a job that knows only that. Raises `NotFound` if its user does not exist."""
        address = await store.address_of(key)
        if address is None:
            raise NotFound
        return cls(store, address.user, address.session_id, settings=settings, category=address.category)

    @on_mongodb("sessions")
    async def write(self, change: Change) -> bool:
        turn, before = change.after.turn, change.before.turn
        question = turn.message if turn is not None and (before is None or before.id != turn.id) else None
        fields = fields_of(change, await self._document(question) if question is not None else None)
        if self.category is not None:
            fields["category"] = self.category
        if change.before.version == 0:
            return await self.create(fields)
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
        new = [
            await self._document(message, is_paid=True) for message in change.inserted if message is not open_question
        ]
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

        return await self.store.mongo.transaction(work)

    async def ensure_user(self) -> None:
        """Create the user's document, unless it exists. Raises `SessionErased` if the user is being deleted."""
        user = await self.store.users.find_one({"_id": self.user_id}, {"erased_at": 1})
        if user is None:
            fields = await self._new(self.store.models.user(id=self.user_id, client_id=self.user))
            user = await self.store.users.find_one_and_update(
                {"_id": fields.pop("_id")},
                {"$setOnInsert": fields},
                projection={"erased_at": 1},
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        if user is not None and user.get("erased_at") is not None:
            raise SessionErased("the user is being deleted")

    async def create(self, fields: dict[str, Any] | None = None, **values: Any) -> bool:
        """Insert the session with these values, unless it exists. `fields` are those of its first change, as stored.

        Raises `SessionErased` if it or its user is being deleted. If the user is marked between the check and the
        insert, the sweep deletes the session: the mark stays longer than any insert takes.
        """
        fields = fields or {}
        change_id = fields.get("change")
        # The hook sees only new documents.
        if self.store.models.fill is not None and (is_inserted := await self._is_inserted(change_id)) is not None:
            return is_inserted
        await self.ensure_user()
        own = {"id": self.key, "user_id": self.user_id, "category": self.category}
        stored = await self._new(self.store.models.session(**own, **values)) | fields
        try:
            await self.store.sessions.insert_one(stored)
        except DuplicateKeyError:
            return bool(await self._is_inserted(change_id))
        return True

    async def _is_inserted(self, change_id: str | None) -> bool | None:
        """Whether this change has inserted the session: the reply was lost. None if there is no session.

        Raises `SessionErased` while it is being deleted.
        """
        found = await self.store.sessions.find_one({"_id": self.key}, {"erased_at": 1, "change": 1})
        if found is not None and found.get("erased_at") is not None:
            raise SessionErased
        return None if found is None else change_id is not None and found.get("change") == change_id

    async def _is_applied(self, change: Change, transaction: AsyncClientSession | None = None) -> bool:
        """Whether the change is the session's last: an earlier try succeeded and its reply was lost."""
        last = {"_id": self.key, "change": change.id}
        return await self.store.sessions.find_one(last, {"_id": 1}, session=transaction) is not None

    async def _document(self, message: SessionMessage, *, is_paid: bool = False) -> dict[str, Any]:
        """Return a new message as it is stored. If it is paid for and `fill` fails, it gets defaults."""
        document = self.store.models.message(**message_fields(self.key, message))
        stored = await self._new(document, is_paid=is_paid)
        return stored | (UNANNOUNCED if message.role == "assistant" and self.settings.webhook_url else {})

    async def _new(self, document: Document, *, is_paid: bool = False) -> dict[str, Any]:
        """Return a new document as it is stored. The team's `fill` hook sets its own fields.

        One whose tokens are paid for must be stored: if `fill` fails, it gets defaults.
        """
        if (fill := self.store.models.fill) is not None:
            failure = f"DocumentModels.fill failed for a {type(document).__name__}"
            try:
                with team_code(failure, ConfigurationError, passes=(OmniAgentError,)):
                    document = await fill_own_fields(fill, document, self.user, self.category)
            except OmniAgentError:
                if not is_paid:
                    raise
                logger.exception("fields of the team's own keep their defaults")
        return to_bson(document)

    def _changed_answers(self, change: Change) -> dict[str, dict[str, Any]]:
        """Return what is set in answers that waited, by their nodes. A reply alone is no event for the webhook."""
        is_reply = change.before.waiting is not None and change.after.turn is not None
        event = UNANNOUNCED if self.settings.webhook_url and not is_reply else {}
        model = self.store.models.message
        documents = {each.node: to_bson(model(**message_fields(self.key, each))) for each in change.changed}
        return {node: {name: each.get(name) for name in _CHANGED} | event for node, each in documents.items()}

    @on_mongodb("sessions")
    async def busy_sessions(self) -> Sequence[tuple[str, LiveTurn | None]]:
        others = IS_BUSY | {"user_id": self.user_id, "_id": {"$ne": self.key}, "erased_at": None}
        found = await self.store.sessions.find(others, WITHOUT_MESSAGES).limit(100).to_list()
        return [(each["_id"], turn_of(each["turn"]) if each["turn"] else None) for each in found]

    @on_mongodb("messages")
    async def set_feedback(self, node: str, feedback: Feedback | None) -> SessionMessage:
        stored = None
        if feedback is not None:
            stored = {**feedback.model_dump(), "text": feedback.text and storable_text(feedback.text)}

        async def work(transaction: AsyncClientSession) -> dict[str, Any] | None:
            at, changes = {"_id": node, "session_id": self.key}, {"$set": {"feedback": stored}}
            return await self.store.messages.find_one_and_update(
                at, changes, return_document=ReturnDocument.AFTER, session=transaction
            )

        if (rated := await self.store.mongo.transaction(work)) is None:
            raise NotFound
        return message_of(rated)

    @on_mongodb("summaries")
    async def add_summary(self, summary: RollingSummary, at: Place, *, draft: bool = False) -> bool:
        stored = {name: getattr(summary, name) for name in SUMMARY}
        stored |= {"session_id": self.key, "draft": draft, "content": storable_text(summary.content)}
        document = await self._new(self.store.models.summary(**stored), is_paid=True)

        async def work(transaction: AsyncClientSession) -> bool:
            session = await self._fenced(transaction)
            if session is None or summary.basis not in (None, session.get("summary_basis") or ""):
                return False
            newest = await self._newest_summary(at, draft=draft, transaction=transaction)
            is_next = summary.start_turn_number == (newest["end_turn_number"] if newest else 0) + 1
            if not is_next or summary.end_turn_number < summary.start_turn_number:
                return False
            await self.store.summaries.insert_one(document, session=transaction)
            return True

        try:
            return await self.store.mongo.transaction(work)
        except StorageConflict:
            return False

    @on_mongodb("summaries")
    async def publish_drafts(self, at: Place | None) -> bool:
        async def work(transaction: AsyncClientSession) -> bool:
            find = self._newest_summary
            newest = await find(at, draft=True, transaction=transaction) if at is not None else None
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

        return await self.store.mongo.transaction(work)

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

    @on_mongodb("sessions")
    async def rename(self, name: str, *, was: str | None) -> bool:
        unchanged = {"_id": self.key, "name": was, "erased_at": None}
        return await self.store.update_session(unchanged, {"name": storable_text(name)}) is not None
