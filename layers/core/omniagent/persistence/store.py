"""`ConversationStore`: the collections, and what is read and changed in more than one session."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from beanie import Document
from pymongo import ASCENDING, DESCENDING, ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection

from omniagent.errors import InvalidRequest
from omniagent.persistence.documents import ANY_TURN_NUMBER, IS_DUE, IS_ERASED, DocumentModels
from omniagent.persistence.driver_errors import on_mongodb
from omniagent.persistence.mongodb import MongoDB
from omniagent.persistence.stored_session import head_of, now
from omniagent.session.ids import public_session_id, session_key, user_id_of
from omniagent.session.manager import OpenTurns, SessionAddress, SessionDirectory, SessionInfo, checked_limit

PIECE = 500
SETTLED: Final = timedelta(seconds=120)
"""The age of a mark whose request has ended, and with it every insert that did not see the mark: MongoDB aborts
transactions after 60 seconds.
"""
Collection = AsyncCollection[dict[str, Any]]
WITHOUT_MESSAGES: Final = {"turn.message": 0, "queue": 0}
NEWEST_SESSIONS: Final = [("updated_at", DESCENDING), ("_id", DESCENDING)]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last item of a page: its time, by which the list is sorted, and its id.

    Clients keep its text while another release is deployed: each reads what the other wrote.
    """

    time: datetime
    id: str

    def encode(self) -> str:
        plain = f"{(self.time - _EPOCH) // _MILLISECOND}:{self.id}"
        return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read what `encode` wrote. Raises `InvalidRequest` for anything else."""
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            milliseconds, _, item_id = base64.b64decode(padded, altchars=b"-_", validate=True).decode().partition(":")
            return cls(_EPOCH + int(milliseconds) * _MILLISECOND, item_id)
        except (ValueError, OverflowError) as exc:
            raise InvalidRequest("before is not a cursor of this list") from exc

    def older(self, field: str, owner: str = "") -> dict[str, Any]:
        """Return the query for the items that follow. Its first bound is where MongoDB enters the index.

        `field` has the time. `owner` is what the stored ids begin with, if the cursor's do not.
        """
        return {field: {"$lte": self.time}, "$or": [{field: {"$lt": self.time}}, {"_id": {"$lt": f"{owner}{self.id}"}}]}


class ConversationStore(SessionDirectory):
    """The conversations in MongoDB: what `MongoBackendAdapter.initialize()` returns.

    Deletion is marking first, then deleting in batches. A marked session is invisible: nothing reads it or writes to
    it, and its id is refused until it is deleted. The rest is small idempotent writes, however large the session or the
    user is. The mark is the job: the sweep deletes what a request has marked and left behind.
    """

    def __init__(self, mongo: MongoDB, models: DocumentModels) -> None:
        self.mongo = mongo
        self.models = models
        self.open_turns = OpenTurns()
        self.users = self._collection(models.user)
        self.sessions = self._collection(models.session)
        self.messages = self._collection(models.message)
        self.summaries = self._collection(models.summary)

    async def update_session(self, query: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Update the session that matches and return its new state, or None if none matches."""

        async def work(transaction: AsyncClientSession) -> dict[str, Any] | None:
            return await self.sessions.find_one_and_update(
                query, {"$set": changes}, return_document=ReturnDocument.AFTER, session=transaction
            )

        return await self.mongo.transaction(work)

    @on_mongodb("sessions")
    async def list_sessions(
        self, user: str, *, limit: int = 20, before: SessionInfo | None = None
    ) -> Sequence[SessionInfo]:
        user_id = user_id_of(user)
        query: dict[str, Any] = {"user_id": user_id, "erased_at": None}
        if before is not None:
            query |= Cursor(before.updated_at, before.session_id).older("updated_at", session_key(user_id, ""))
        sessions = self.sessions.find(query, WITHOUT_MESSAGES).sort(NEWEST_SESSIONS)
        found = await sessions.limit(checked_limit(limit)).to_list()
        return [SessionInfo.of(each["_id"], head_of(each), each["updated_at"]) for each in found]

    async def due(self, now: datetime, limit: int) -> Sequence[SessionAddress]:
        return await self.addresses({"due": {**IS_DUE, "$lte": now}, "erased_at": None}, limit, order="due")

    @on_mongodb("sessions")
    async def addresses(
        self, query: Mapping[str, Any], limit: int = 0, *, order: str | None = None, erased: bool = False
    ) -> list[SessionAddress]:
        """Return the sessions that match, without those of unknown users; `erased`: also of users being deleted."""
        sessions = self.sessions.find(query, {"user_id": 1, "category": 1}).limit(limit)
        found = await (sessions.sort(order) if order else sessions).to_list()
        users = await self._users({session["user_id"] for session in found}, erased=erased) if found else {}
        return [
            SessionAddress(users[each["user_id"]], public_session_id(each["_id"]), each.get("category"))
            for each in found
            if each["user_id"] in users
        ]

    @on_mongodb("sessions")
    async def address_of(self, key: str) -> SessionAddress | None:
        users = await self._users([key.partition(":")[0]])
        session = await self.sessions.find_one({"_id": key}, {"category": 1}) if users else None
        category = session.get("category") if session is not None else None
        return SessionAddress(next(iter(users.values())), public_session_id(key), category) if users else None

    @on_mongodb("sessions")
    async def erase_some(self, key: str, limit: int = PIECE) -> bool:
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

    @on_mongodb("users")
    async def mark_user_erased(self, user_id: str, limit: int = PIECE) -> bool:
        await self.users.update_one({"_id": user_id, "erased_at": None}, {"$set": {"erased_at": now()}})
        unmarked = await _ids(self.sessions, {"user_id": user_id, "erased_at": None}, limit)

        async def work(transaction: AsyncClientSession) -> None:
            await self.sessions.update_many({"_id": {"$in": unmarked}}, {"$set": _mark()}, session=transaction)

        if unmarked:
            await self.mongo.transaction(work)
        return len(unmarked) < limit

    @on_mongodb("users")
    async def user_is_erased(self, user_id: str) -> bool:
        return await self.users.find_one({"_id": user_id} | IS_ERASED, {"_id": 1}) is not None

    @on_mongodb("sessions")
    async def session_keys(self, user_id: str, *, limit: int = PIECE) -> Sequence[str]:
        # Prefix scan for `<user_id>:` (`;` is the next code point).
        query = {"_id": {"$gt": f"{user_id}:", "$lt": f"{user_id};"}}
        found = self.sessions.find(query, {"_id": 1}).sort("_id", ASCENDING).limit(limit)
        return [session["_id"] async for session in found]

    @on_mongodb("sessions")
    async def mark_idle(self, before: datetime, limit: int = PIECE) -> None:
        idle: dict[str, Any] = ANY_TURN_NUMBER | {"erased_at": None, "updated_at": {"$lt": before}}
        keys = await _ids(self.sessions, idle, limit)
        for key in keys:  # each only if it is still idle: a turn may be beginning
            await self.update_session({"_id": key} | idle, _mark())

    @on_mongodb("sessions")
    async def marked_sessions(self, limit: int = PIECE) -> Sequence[SessionAddress]:
        settled = ANY_TURN_NUMBER | {"erased_at": {"$lt": now() - SETTLED}}
        return await self.addresses(settled, limit, erased=True)

    @on_mongodb("users")
    async def marked_users(self, limit: int = PIECE) -> Sequence[str]:
        found = self.users.find({"erased_at": {**IS_DUE, "$lt": now() - SETTLED}}, {"client_id": 1}).limit(limit)
        return [user["client_id"] async for user in found]

    @on_mongodb("users")
    async def forget_user(self, user_id: str) -> bool:
        if await self.users.find_one({"_id": user_id, "erased_at": {"$gte": now() - SETTLED}}, {"_id": 1}):
            return False
        # Read after the mark's age: no session can appear any more.
        if await self.session_keys(user_id, limit=1):
            return False
        await self.users.delete_one({"_id": user_id} | IS_ERASED)
        return True

    async def _users(self, ids: Iterable[str], *, erased: bool = False) -> dict[str, str]:
        """Return the names of users by their ids; `erased`: also of those who are being deleted."""
        query = {"_id": {"$in": list(ids)}} | ({} if erased else {"erased_at": None})
        return {each["_id"]: each["client_id"] async for each in self.users.find(query, {"client_id": 1})}

    def _collection(self, model: type[Document]) -> Collection:
        # Not the class's own collection: another adapter may have bound the class since.
        return self.mongo.database[model.get_collection_name()]


async def _ids(collection: Collection, query: dict[str, Any], limit: int) -> list[Any]:
    return [found["_id"] async for found in collection.find(query, {"_id": 1}).limit(limit)]


def _mark() -> dict[str, Any]:
    """Return the fields of a marked session. Its turn stays: whoever deletes the session stops it."""
    return {"erased_at": now(), "queue": [], "is_busy": False, "due": None}
