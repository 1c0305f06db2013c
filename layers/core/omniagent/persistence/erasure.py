"""Deletion: mark first, then delete in batches.

A marked session is invisible: nothing reads it or writes to it, and its id is refused until it is deleted. The rest is
small idempotent writes, however large the session or the user is.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeVar

from pymongo import ASCENDING
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection

from omniagent.persistence.documents import ANY_TURN_NUMBER
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.stored_values import now
from omniagent.tracing import SpanKind, trace_method

PIECE = 500
Collection = AsyncCollection[dict[str, Any]]
Result = TypeVar("Result")


class Collections(Protocol):
    """What a deletion needs of the store."""

    users: Collection
    sessions: Collection
    messages: Collection
    summaries: Collection

    async def transaction(self, work: Callable[[AsyncClientSession], Awaitable[Result]]) -> Result:
        """Run `work` in a transaction."""

    async def update_session(self, query: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Update the session that matches and return its new state, or None if none matches."""


_SESSIONS = {"db.collection.name": "sessions"}
_USERS = {"db.collection.name": "users"}


class Erasure:
    """Deletes sessions and users."""

    def __init__(self, store: Collections) -> None:
        self._store = store

    @trace_method(kind=SpanKind.DB, name="mongodb.mark_erased", attributes=_SESSIONS)
    async def mark_erased(self, key: str) -> bool:
        """Mark a session as deleted. A running turn is discarded. Returns False if the session does not exist."""
        return await self._store.update_session({"_id": key}, _mark()) is not None

    @trace_method(kind=SpanKind.DB, name="mongodb.erase_some", attributes=_SESSIONS)
    async def erase_some(self, key: str, limit: int = PIECE) -> bool:
        """Delete up to `limit` messages and summaries of a marked session, and finally the session.

        Returns True if nothing is left, also if a new session has the id since.
        """
        with translated():
            if not await self._is_marked(self._store.sessions, key):
                return True
            for collection in (self._store.messages, self._store.summaries):
                if await self._delete(collection, {"session_id": key}, limit) == limit:
                    return False
            await self._store.sessions.delete_one({"_id": key, "erased_at": {"$type": "date"}})
        return True

    @trace_method(kind=SpanKind.DB, name="mongodb.mark_user_erased", attributes=_USERS)
    async def mark_user_erased(self, user_id: str, limit: int = PIECE) -> bool:
        """Mark a user as deleted, then up to `limit` of their sessions. Returns True when all are marked."""
        sessions = self._store.sessions
        with translated():
            await self._store.users.update_one({"_id": user_id, "erased_at": None}, {"$set": {"erased_at": now()}})
            unmarked = await self._ids(sessions, {"user_id": user_id, "erased_at": None}, limit)

        async def work(transaction: AsyncClientSession) -> None:
            await sessions.update_many({"_id": {"$in": unmarked}}, {"$set": _mark()}, session=transaction)

        if unmarked:
            await self._store.transaction(work)
        return len(unmarked) < limit

    @trace_method(kind=SpanKind.DB, name="mongodb.user_is_erased", attributes=_USERS)
    async def user_is_erased(self, user_id: str) -> bool:
        with translated():
            return await self._is_marked(self._store.users, user_id)

    @trace_method(kind=SpanKind.DB, name="mongodb.session_keys", attributes=_SESSIONS)
    async def session_keys(
        self, user_id: str, *, after: str = "", limit: int = PIECE, before: datetime | None = None
    ) -> list[str]:
        """Return keys of a user's sessions in order, including those being deleted, for iterating over all of them.

        With `before` only those of the sessions that were created earlier.
        """
        # Prefix scan for `<user_id>:` (`;` is the next code point).
        query: dict[str, Any] = {"_id": {"$gt": max(after, f"{user_id}:"), "$lt": f"{user_id};"}}
        if before is not None:
            query["created_at"] = {"$lt": before}
        with translated():
            found = self._store.sessions.find(query, {"_id": 1}).sort("_id", ASCENDING).limit(limit)
            return [session["_id"] async for session in found]

    @trace_method(kind=SpanKind.DB, name="mongodb.mark_idle", attributes=_SESSIONS)
    async def mark_idle(self, before: datetime, limit: int = PIECE) -> list[str]:
        """Mark up to `limit` sessions of any user without messages since then, and return their keys."""
        idle: dict[str, Any] = ANY_TURN_NUMBER | {"erased_at": None, "updated_at": {"$lt": before}}
        with translated():
            keys = await self._ids(self._store.sessions, idle, limit)
        # One by one, each only if it is still idle: a turn may be beginning.
        return [key for key in keys if await self._store.update_session({"_id": key} | idle, _mark()) is not None]

    @trace_method(kind=SpanKind.DB, name="mongodb.cut_off", attributes=_SESSIONS)
    async def cut_off(self, before: datetime, limit: int = PIECE) -> list[str]:
        """Return keys of up to `limit` sessions that were marked before a time and are not deleted yet."""
        with translated():
            return await self._ids(self._store.sessions, ANY_TURN_NUMBER | {"erased_at": {"$lt": before}}, limit)

    @trace_method(kind=SpanKind.DB, name="mongodb.forget_user", attributes=_USERS)
    async def forget_user(self, user_id: str) -> bool:
        """Delete a marked user who has no sessions. Returns False when there are some."""
        if await self.session_keys(user_id, limit=1):
            return False
        with translated():
            await self._store.users.delete_one({"_id": user_id, "erased_at": {"$type": "date"}})
        return True

    async def _is_marked(self, collection: Collection, document_id: str) -> bool:
        return await collection.find_one({"_id": document_id, "erased_at": {"$type": "date"}}, {"_id": 1}) is not None

    async def _delete(self, collection: Collection, query: dict[str, Any], limit: int) -> int:
        ids = await self._ids(collection, query, limit)
        if ids:
            await collection.delete_many({"_id": {"$in": ids}})
        return len(ids)

    async def _ids(self, collection: Collection, query: dict[str, Any], limit: int) -> list[Any]:
        return [found["_id"] async for found in collection.find(query, {"_id": 1}).limit(limit)]


def _mark() -> dict[str, Any]:
    """Return the fields of a marked session. Its turn stays: whoever deletes the session stops it."""
    return {"erased_at": now(), "queue": [], "is_busy": False, "due": None}
