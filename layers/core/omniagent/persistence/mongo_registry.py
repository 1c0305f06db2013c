"""The turn registry and the counter of spendings in MongoDB, for servers without AWS that share a database."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import ASCENDING, DESCENDING, ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import DuplicateKeyError

from omniagent.budget.spending import Spending, SpendingCounter
from omniagent.errors import RegistryUnavailable, StorageError
from omniagent.messages import Usage
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.store import ConversationStore
from omniagent.turns.registry import KEPT_DAYS, Chunk, Signals, TurnRegistry


class MongoTurnRegistry(TurnRegistry):
    """The turn registry in a store's MongoDB database, shared by all servers of that database.

    The servers' clocks must differ by much less than a lease.
    """

    def __init__(
        self, store: ConversationStore, *, clock: Callable[[], float] = time.time, kept_days: float = KEPT_DAYS
    ) -> None:
        database = store.sessions.database
        self._chunks = database["omniagent_journals"]
        self._signals = database["omniagent_signals"]
        self._readers = database["omniagent_readers"]
        self._clock = clock
        self._kept = timedelta(days=kept_days)
        self._is_prepared = False

    def _expiry(self) -> datetime:
        return datetime.now(UTC) + self._kept

    async def append(self, session: str, journal: str, chunk: Chunk) -> bool:
        await self._prepare()
        own = {"_id": _chunk_id(session, journal, chunk.number), "run": chunk.run}
        fields = {"lines": chunk.lines, "at": chunk.at, "expires_at": self._expiry()}
        with reachable():
            try:
                await self._chunks.insert_one(own | fields)
            except DuplicateKeyError:
                return bool((await self._chunks.update_one(own, {"$set": fields})).matched_count)
        return True

    async def read(self, session: str, journal: str, after: int = -1, *, newest: bool = False) -> list[Chunk]:
        ids = {"$gte": _chunk_id(session, journal, after + 1), "$lt": f"{session}#{journal}$"}  # `$` follows `#`
        with reachable():
            found = self._chunks.find({"_id": ids}).sort("_id", DESCENDING if newest else ASCENDING)
            chunks = await found.limit(1 if newest else 0).to_list()
        return [
            Chunk(int(each["_id"].rpartition("#")[2]), each["run"], each["at"], bytes(each["lines"])) for each in chunks
        ]

    async def signal(self, session: str, journal: str, *, stop: bool = False, mail: bool = False) -> None:
        await self._prepare()
        changes = {
            "$set": {"expires_at": self._expiry()} | ({"stop": True} if stop else {}),
            "$inc": {"mail": int(mail)},
        }
        with reachable():
            await self._signals.update_one({"_id": f"{session}#{journal}"}, changes, upsert=True)

    async def signals(self, session: str, journal: str) -> Signals:
        with reachable():
            found = await self._signals.find_one({"_id": f"{session}#{journal}"}) or {}
        return Signals(found.get("stop", False), found.get("mail", 0))

    async def count_reader(self, user_id: str, reader: str, seconds: float) -> int:
        await self._prepare()
        now = self._clock()
        is_staying = {"$and": [{"$gt": ["$$this.until", now]}, {"$ne": ["$$this.id", reader]}]}
        staying = {"$filter": {"input": {"$ifNull": ["$readers", []]}, "cond": is_staying}}
        entry = [{"$literal": {"id": reader, "until": now + seconds}}] if seconds else []
        changes = {"readers": {"$concatArrays": [staying, entry]}, "expires_at": self._expiry()}
        with reachable():
            while True:
                try:
                    found = await self._readers.find_one_and_update(
                        {"_id": user_id}, [{"$set": changes}], upsert=True, return_document=ReturnDocument.AFTER
                    )
                except DuplicateKeyError:
                    continue  # another reader of the user has just inserted it
                return len(found["readers"]) if found else 0

    async def erase(self, owner: str, limit: int = 500) -> bool:
        of_owner: dict[str, Any] = {"_id": {"$gte": f"{owner}#", "$lt": f"{owner}$"}}
        with reachable():
            await self._readers.delete_one({"_id": owner})
            await self._signals.delete_many(of_owner)
            found = await self._chunks.find(of_owner, {"_id": 1}).limit(limit).to_list()
            await self._chunks.delete_many({"_id": {"$in": [chunk["_id"] for chunk in found]}})
        return len(found) < limit

    async def _prepare(self) -> None:
        if not self._is_prepared:
            for collection in (self._chunks, self._signals, self._readers):
                await _expire(collection)
            self._is_prepared = True


async def _expire(collection: AsyncCollection[dict[str, Any]]) -> None:
    """Create the index that deletes what has expired. MongoDB skips one that exists."""
    with reachable():
        await collection.create_index("expires_at", expireAfterSeconds=0)


@contextmanager
def reachable() -> Iterator[None]:
    """Raise every database error as `RegistryUnavailable`, except `DuplicateKeyError`."""
    try:
        with translated():
            yield
    except StorageError as exc:
        if isinstance(exc.__cause__, DuplicateKeyError):
            raise exc.__cause__ from None
        raise RegistryUnavailable(f"MongoDB: {exc}") from exc


def _chunk_id(session: str, journal: str, number: int) -> str:
    return f"{session}#{journal}#{number:08}"


class MongoCounter(SpendingCounter):
    """One document per user, with the counts of one day and one minute. The driver repeats no write twice."""

    def __init__(self, store: ConversationStore, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._users = store.sessions.database["omniagent_spending"]
        self._has_index = False

    async def add(self, user_id: str, usage: Usage) -> Spending:
        tokens = usage.total_tokens
        return await self._change({"_id": user_id}, tokens=tokens, estimated=tokens if usage.estimated else 0)

    async def count_request(self, user_id: str, limit: int) -> Spending:
        now = self.nothing()
        is_full = {"day": now.day, "minute": now.minute, "requests": {"$gte": limit}}
        while True:
            try:
                return await self._change({"_id": user_id, "$nor": [is_full]}, requests=1)
            except DuplicateKeyError:  # it is full, or another process has just counted the user's first request
                if (spent := await self.read(user_id)).requests >= limit:
                    raise spent.too_many_requests() from None

    async def read(self, user_id: str) -> Spending:
        with reachable():
            found = await self._users.find_one({"_id": user_id})
        return self._spending(found or {})

    async def _change(
        self, user: dict[str, Any], *, tokens: int = 0, estimated: int = 0, requests: int = 0
    ) -> Spending:
        now = self.nothing()
        is_today = {"$eq": ["$day", now.day]}
        is_now = {"$and": [is_today, {"$eq": ["$minute", now.minute]}]}
        change = {
            "tokens": {"$add": [{"$cond": [is_today, "$tokens", 0]}, tokens]},
            "estimated": {"$add": [{"$cond": [is_today, "$estimated", 0]}, estimated]},
            "requests": {"$add": [{"$cond": [is_now, "$requests", 0]}, requests]},
            "minute": now.minute,
            "day": now.day,
            "expires_at": now.next_day,
        }
        if not self._has_index:
            await _expire(self._users)
            self._has_index = True
        with reachable():
            changed = await self._users.find_one_and_update(
                user, [{"$set": change}], upsert=True, return_document=ReturnDocument.AFTER
            )
        return self._spending(changed or {})

    def _spending(self, found: dict[str, Any]) -> Spending:
        now = self.nothing()
        if found.get("day") != now.day:
            return now
        requests = found["requests"] if found["minute"] == now.minute else 0
        return Spending(now.at, found["tokens"], found["estimated"], requests)
