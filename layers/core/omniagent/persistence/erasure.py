"""Deletion: mark first, then delete in batches.

A marked session is invisible: nothing reads it or writes to it, and its id is refused until it is deleted. The rest is
small idempotent writes, however large the session or the user is. The mark is the job: the sweep deletes what a request
has marked and left behind.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypeVar

from pymongo import ASCENDING
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection

from omniagent.persistence.documents import ANY_TURN_NUMBER, IS_DUE, IS_ERASED
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.stored_values import now
from omniagent.session.addresses import SessionAddress
from omniagent.session.ids import public_session_id
from omniagent.tracing import SpanKind, trace_method

PIECE = 500
SETTLED: Final = timedelta(seconds=120)
"""The age of a mark whose request has ended, and with it every insert that did not see the mark: MongoDB aborts
transactions after 60 seconds.
"""
Collection = AsyncCollection[dict[str, Any]]
Result = TypeVar("Result")


class Collections(Protocol):
    """The collections, and how a session is changed."""

    users: Collection
    sessions: Collection
    messages: Collection
    summaries: Collection

    async def transaction(self, work: Callable[[AsyncClientSession], Awaitable[Result]]) -> Result:
        """Run `work` in a transaction."""
        ...

    async def update_session(self, query: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Update the session that matches and return its new state, or None if none matches."""
        ...


_SESSIONS = {"db.collection.name": "sessions"}
_USERS = {"db.collection.name": "users"}


class Erasure(Collections, Protocol):
    """The part of the store that deletes sessions and users. See `SessionDirectory`."""

    @trace_method(kind=SpanKind.DB, name="mongodb.erase_some", attributes=_SESSIONS)
    async def erase_some(self, key: str, limit: int = PIECE) -> bool:
        """Delete up to `limit` messages and summaries of a marked session, and finally the session.

        Returns True if nothing is left, also if a new session has the id since.
        """
        with translated():
            if await self.sessions.find_one({"_id": key} | IS_ERASED, {"_id": 1}) is None:
                return True
            for collection in (self.messages, self.summaries):
                ids = await _ids(collection, {"session_id": key}, limit)
                if ids:
                    await collection.delete_many({"_id": {"$in": ids}})
                if len(ids) == limit:
                    return False
            await self.sessions.delete_one({"_id": key} | IS_ERASED)
        return True

    @trace_method(kind=SpanKind.DB, name="mongodb.mark_user_erased", attributes=_USERS)
    async def mark_user_erased(self, user_id: str, limit: int = PIECE) -> bool:
        """See `SessionDirectory.mark_user_erased`."""
        with translated():
            await self.users.update_one({"_id": user_id, "erased_at": None}, {"$set": {"erased_at": now()}})
            unmarked = await _ids(self.sessions, {"user_id": user_id, "erased_at": None}, limit)

        async def work(transaction: AsyncClientSession) -> None:
            await self.sessions.update_many({"_id": {"$in": unmarked}}, {"$set": _mark()}, session=transaction)

        if unmarked:
            await self.transaction(work)
        return len(unmarked) < limit

    @trace_method(kind=SpanKind.DB, name="mongodb.user_is_erased", attributes=_USERS)
    async def user_is_erased(self, user_id: str) -> bool:
        """See `SessionDirectory.user_is_erased`."""
        with translated():
            return await self.users.find_one({"_id": user_id} | IS_ERASED, {"_id": 1}) is not None

    @trace_method(kind=SpanKind.DB, name="mongodb.session_keys", attributes=_SESSIONS)
    async def session_keys(self, user_id: str, *, limit: int = PIECE) -> Sequence[str]:
        """See `SessionDirectory.session_keys`."""
        # Prefix scan for `<user_id>:` (`;` is the next code point).
        query = {"_id": {"$gt": f"{user_id}:", "$lt": f"{user_id};"}}
        with translated():
            found = self.sessions.find(query, {"_id": 1}).sort("_id", ASCENDING).limit(limit)
            return [session["_id"] async for session in found]

    @trace_method(kind=SpanKind.DB, name="mongodb.mark_idle", attributes=_SESSIONS)
    async def mark_idle(self, before: datetime, limit: int = PIECE) -> None:
        """See `SessionDirectory.mark_idle`."""
        idle: dict[str, Any] = ANY_TURN_NUMBER | {"erased_at": None, "updated_at": {"$lt": before}}
        with translated():
            keys = await _ids(self.sessions, idle, limit)
        for key in keys:  # each only if it is still idle: a turn may be beginning
            await self.update_session({"_id": key} | idle, _mark())

    @trace_method(kind=SpanKind.DB, name="mongodb.marked_sessions", attributes=_SESSIONS)
    async def marked_sessions(self, limit: int = PIECE) -> Sequence[SessionAddress]:
        """See `SessionDirectory.marked_sessions`."""
        query = ANY_TURN_NUMBER | {"erased_at": {"$lt": now() - SETTLED}}
        with translated():
            found = await self.sessions.find(query, {"user_id": 1}).limit(limit).to_list()
            users = await self._users([session["user_id"] for session in found], erased=True)
        return [
            SessionAddress(users[each["user_id"]], public_session_id(each["_id"]))
            for each in found
            if each["user_id"] in users
        ]

    @trace_method(kind=SpanKind.DB, name="mongodb.marked_users", attributes=_USERS)
    async def marked_users(self, limit: int = PIECE) -> Sequence[str]:
        """See `SessionDirectory.marked_users`."""
        with translated():
            found = self.users.find({"erased_at": {**IS_DUE, "$lt": now() - SETTLED}}, {"client_id": 1}).limit(limit)
            return [user["client_id"] async for user in found]

    @trace_method(kind=SpanKind.DB, name="mongodb.forget_user", attributes=_USERS)
    async def forget_user(self, user_id: str) -> bool:
        """See `SessionDirectory.forget_user`."""
        with translated():
            if await self.users.find_one({"_id": user_id, "erased_at": {"$gte": now() - SETTLED}}, {"_id": 1}):
                return False
            # Read after the mark's age: no session can appear any more.
            if await self.session_keys(user_id, limit=1):
                return False
            await self.users.delete_one({"_id": user_id} | IS_ERASED)
        return True

    async def _users(self, ids: Sequence[str], *, erased: bool = False) -> dict[str, str]:
        """Return the names of users by their ids; `erased`: also of those who are being deleted."""
        if not ids:
            return {}
        query = {"_id": {"$in": list(ids)}} | ({} if erased else {"erased_at": None})
        found = await self.users.find(query, {"client_id": 1}).to_list()
        return {user["_id"]: user["client_id"] for user in found}


async def _ids(collection: Collection, query: dict[str, Any], limit: int) -> list[Any]:
    return [found["_id"] async for found in collection.find(query, {"_id": 1}).limit(limit)]


def _mark() -> dict[str, Any]:
    """Return the fields of a marked session. Its turn stays: whoever deletes the session stops it."""
    return {"erased_at": now(), "queue": [], "is_busy": False, "due": None}
