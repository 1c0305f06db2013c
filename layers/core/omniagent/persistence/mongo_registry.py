"""`MongoTurnRegistry`: the turn registry in MongoDB, for servers without AWS. Its data outlives their processes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, IndexModel, ReturnDocument
from pymongo.errors import DuplicateKeyError

from omniagent.errors import RegistryUnavailable, StorageError
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.store import ConversationStore
from omniagent.turns.registry import KEPT_DAYS, Chunk, Signals, TurnRegistry

_EXPIRY: Final = IndexModel([("expires_at", ASCENDING)], expireAfterSeconds=0)


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
        self._preparing = asyncio.Lock()
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
        """Create the indexes. MongoDB skips those that exist."""
        if self._is_prepared:
            return
        async with self._preparing:
            if not self._is_prepared:
                with reachable():
                    for collection in (self._chunks, self._signals, self._readers):
                        await collection.create_indexes([_EXPIRY])
                self._is_prepared = True


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
