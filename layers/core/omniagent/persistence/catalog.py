"""The reads and writes of the sessions API and of summary regeneration.

Sessions are named by their key, which starts with the owner's id: another user's are out of reach of every query here,
and answer exactly like those that do not exist. Lists page by what the last page ended with, never by skipping.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from bson import ObjectId
from pymongo import ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession

from omniagent.errors import NotFound, StorageConflict, TurnInProgress
from omniagent.persistence.connection import translated
from omniagent.persistence.cursor import SessionCursor
from omniagent.persistence.documents import Message, Session, Summary, now
from omniagent.persistence.store import ConversationStore, Owner
from omniagent.tracing import SpanKind, trace_method

Item = TypeVar("Item")

# A conversation of thousands of turns is deleted in one transaction: that may take longer than other work.
CASCADE_TIMEOUT_SECONDS = 25.0
# Older sessions have nothing left in the registry of turns, which forgets after an hour.
RECENT = timedelta(hours=2)
TURNS_PER_READ = 50


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A part of a list. `before` asks for the next one; None on the last."""

    items: list[Item]
    before: str | None


class Catalog:
    """The conversations as their owners browse them."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store
        self.models = store.models

    @trace_method(kind=SpanKind.DB, name="mongodb.create_session")
    async def create(self, owner: Owner, key: str, name: str | None = None) -> tuple[Session, bool]:
        """Make a session, or return the one that has the key already. The bool says whether it is new."""
        user = self.models.user(id=owner.user_id, client_id=owner.client_id, category=owner.category)
        session = self.models.session(id=key, user_id=owner.user_id, name=name)
        with translated():
            for document in (user, session):
                written = await document.get_pymongo_collection().update_one(
                    {"_id": document.id},
                    {"$setOnInsert": document.model_dump(exclude={"id", "revision_id"})},
                    upsert=True,
                )
        return (session, True) if written.upserted_id else (await self.get(key), False)

    @trace_method(kind=SpanKind.DB, name="mongodb.list_sessions")
    async def list_page(
        self, user_id: str, *, limit: int, before: str | None = None, search: str | None = None
    ) -> Page[Session]:
        """Return the user's sessions, the most recently used first. `search` is a part of the name."""
        query: dict[str, Any] = {"user_id": user_id}
        if before is not None:
            query |= SessionCursor.decode(before).older(user_id)
        if search:
            query["name"] = {"$regex": re.escape(search), "$options": "i"}
        with translated():
            found = self.models.session.find(query).sort("-updated_at", "-_id").limit(limit + 1)
            sessions = await found.to_list()
        more = len(sessions) > limit
        return Page(sessions[:limit], SessionCursor.at(sessions[limit - 1]).encode() if more else None)

    @trace_method(kind=SpanKind.DB, name="mongodb.get_session")
    async def get(self, key: str) -> Session:
        with translated():
            return _found(await self.models.session.find_one({"_id": key}))

    @trace_method(kind=SpanKind.DB, name="mongodb.rename_session")
    async def rename(self, key: str, name: str) -> Session:
        return _found(await self._set_name({"_id": key}, name))

    @trace_method(kind=SpanKind.DB, name="mongodb.name_session")
    async def rename_unchanged(self, key: str, name: str, *, was: str | None) -> Session:
        """Rename a session that still has the name it `was` given. A name that somebody chose meanwhile stands."""
        return await self._set_name({"_id": key, "name": was}, name) or await self.get(key)

    @trace_method(kind=SpanKind.DB, name="mongodb.delete_session")
    async def delete(self, key: str) -> None:
        """Delete a session with everything in it."""

        async def work(transaction: AsyncClientSession) -> None:
            sessions = self.models.session.get_pymongo_collection()
            deleted = await sessions.delete_one({"_id": key}, session=transaction)
            if not deleted.deleted_count:
                raise NotFound
            await self._delete_contents(key, transaction)

        await self._store.transaction(work, timeout_seconds=CASCADE_TIMEOUT_SECONDS)

    @trace_method(kind=SpanKind.DB, name="mongodb.delete_user")
    async def delete_user(self, user_id: str) -> None:
        """Delete a user with all their sessions. There may be none."""

        async def work(transaction: AsyncClientSession) -> None:
            await self.models.user.get_pymongo_collection().delete_one({"_id": user_id}, session=transaction)
            await self.models.session.get_pymongo_collection().delete_many({"user_id": user_id}, session=transaction)
            # Every key of the user's begins so, and a semicolon is what follows a colon.
            await self._delete_contents({"$gte": f"{user_id}:", "$lt": f"{user_id};"}, transaction)

        await self._store.transaction(work, timeout_seconds=CASCADE_TIMEOUT_SECONDS)

    @trace_method(kind=SpanKind.DB, name="mongodb.recent_sessions")
    async def recent_keys(self, user_id: str) -> list[str]:
        """Return the sessions that the registry of turns may still know."""
        query = {"user_id": user_id, "updated_at": {"$gt": now() - RECENT}}
        with translated():
            found = self.models.session.get_pymongo_collection().find(query, {"_id": 1})
            return [session["_id"] async for session in found]

    @trace_method(kind=SpanKind.DB, name="mongodb.list_messages")
    async def messages_page(self, key: str, *, limit: int, before: int | None = None) -> Page[Message]:
        """Return whole turns, the newest of those before the given one, in the order they were said."""
        query: dict[str, Any] = {"session_id": key}
        if before is not None:
            query["turn_number"] = {"$lt": before}
        with translated():
            found = self.models.message.find(query).sort("-turn_number", "+role").limit(limit + 1)
            newest = await found.to_list()
        if len(newest) <= limit:
            return Page(newest[::-1], None)
        # One more was read than fits: the turn that it belongs to starts the next page.
        page = [message for message in newest if message.turn_number > newest[-1].turn_number]
        return Page(page[::-1], str(newest[-1].turn_number + 1))

    @trace_method(kind=SpanKind.DB, name="mongodb.delete_message")
    async def delete_message(self, key: str, message_id: str) -> None:
        """Delete a message. Raises `TurnInProgress` while its turn runs."""

        async def work(transaction: AsyncClientSession) -> None:
            session = await self._fenced(key, transaction)
            at = {"session_id": key, "client_message_id": message_id}
            message = await self.models.message.find_one(at, session=transaction)
            if session is None or message is None:
                raise NotFound
            if message.turn_number > finished_turns(session):
                raise TurnInProgress
            await message.delete(session=transaction)

        await self._store.transaction(work)

    @trace_method(kind=SpanKind.DB, name="mongodb.latest_summary")
    async def latest_summary(self, key: str, *, transaction: AsyncClientSession | None = None) -> Summary | None:
        with translated():
            latest = self.models.summary.find({"session_id": key}, session=transaction).sort("-end_turn_number")
            return await latest.first_or_none()

    async def turns_between(
        self, key: str, first: int, last: int, *, at_a_time: int = TURNS_PER_READ
    ) -> AsyncIterator[list[Message]]:
        """Yield the messages of the turns `first` to `last` in order, some whole turns at a time."""
        for start in range(first, last + 1, at_a_time):
            end = min(start + at_a_time - 1, last)
            query = {"session_id": key, "turn_number": {"$gte": start, "$lte": end}}
            with translated():
                messages = await self.models.message.find(query).sort("+turn_number", "-role").to_list()
            if messages:
                yield messages

    @trace_method(kind=SpanKind.DB, name="mongodb.add_summary")
    async def add_summary(self, summary: Summary) -> bool:
        """Store a summary that continues the latest one. Returns False when it does not, or not any more."""

        async def work(transaction: AsyncClientSession) -> bool:
            session = await self._fenced(summary.session_id, transaction)
            if session is None or summary.end_turn_number > finished_turns(session):
                return False
            latest = await self.latest_summary(summary.session_id, transaction=transaction)
            if summary.start_turn_number != (latest.end_turn_number if latest else 0) + 1:
                return False
            await summary.insert(session=transaction)
            return True

        try:
            return await self._store.transaction(work)
        except StorageConflict:
            return False

    @trace_method(kind=SpanKind.DB, name="mongodb.replace_summaries")
    async def replace_summaries(self, key: str, summary: Summary | None) -> bool:
        """Put one summary in the place of all. Returns False when the session has changed too much meanwhile."""

        async def work(transaction: AsyncClientSession) -> bool:
            session = await self._fenced(key, transaction)
            if session is None or (summary and summary.end_turn_number > finished_turns(session)):
                return False
            await self.models.summary.get_pymongo_collection().delete_many({"session_id": key}, session=transaction)
            if summary is not None:
                await summary.insert(session=transaction)
            return True

        return await self._store.transaction(work)

    async def _set_name(self, query: dict[str, Any], name: str) -> Session | None:
        with translated():
            changed = await self.models.session.get_pymongo_collection().find_one_and_update(
                query, {"$set": {"name": name}}, return_document=ReturnDocument.AFTER
            )
        return self.models.session.model_validate(changed) if changed else None

    async def _fenced(self, key: str, transaction: AsyncClientSession) -> Session | None:
        """Read a session and keep it from being deleted or answered until the transaction ends.

        A read alone does not: only two writes of one document conflict, and only when they change something.
        """
        found = await self.models.session.get_pymongo_collection().find_one_and_update(
            {"_id": key}, {"$set": {"fence": ObjectId()}}, session=transaction
        )
        return self.models.session.model_validate(found) if found else None

    async def _delete_contents(self, session_id: str | dict[str, str], transaction: AsyncClientSession) -> None:
        for model in (self.models.message, self.models.summary):
            await model.get_pymongo_collection().delete_many({"session_id": session_id}, session=transaction)


def finished_turns(session: Session) -> int:
    """Return the number of the last turn that is not running."""
    return session.latest_turn_number - (session.active_turn_id is not None)


def _found(session: Session | None) -> Session:
    if session is None:
        raise NotFound
    return session
