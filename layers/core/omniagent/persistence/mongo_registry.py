"""`MongoTurnRegistry`: the turn registry in MongoDB, for servers without AWS. Its data outlives their processes."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pymongo import ASCENDING, IndexModel, ReturnDocument
from pymongo.errors import DuplicateKeyError

from omniagent.errors import QueueFull, RegistryUnavailable, StorageError
from omniagent.persistence.store import ConversationStore, translated
from omniagent.turns.lease import (
    CLOCK_SECONDS,
    ERASE,
    GIVEN_BACK,
    MAX_INBOX_BYTES,
    REPAIR,
    Claim,
    InboxMessage,
    OnDead,
    Reader,
    Renewal,
    RunningTurn,
    TurnRegistry,
    is_reserved_for_other,
)

LIFE: Final = timedelta(days=90)
"""A repair needs the chunk log, however late the user comes back."""
ERASURE_LIFE: Final = timedelta(hours=2)
_HAS_INBOX: Final[dict[str, Any]] = {"inbox.0": {"$exists": True}}
_NO_INBOX: Final[dict[str, Any]] = {"inbox.0": {"$exists": False}}
_HAS_QUESTION: Final[dict[str, Any]] = {"question": {"$exists": True}}
_EXPIRY: Final = IndexModel([("expires_at", ASCENDING)], expireAfterSeconds=0)


class MongoTurnRegistry(TurnRegistry):
    """The turn registry in a store's MongoDB database, shared by all servers of that database.

    `lease_seconds` is how long a dead process blocks its session. The servers' clocks must differ by much less than it.
    """

    def __init__(
        self, store: ConversationStore, *, lease_seconds: float = 10.0, clock: Callable[[], float] = time.time
    ) -> None:
        database = store.sessions.database
        self._turns = database["omniagent_turns"]
        self._chunks = database["omniagent_chunks"]
        self._readers = database["omniagent_readers"]
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._preparing = asyncio.Lock()
        self._is_prepared = False

    async def claim(self, claim: Claim, on_dead: OnDead | None = None) -> RunningTurn | None:
        await self._prepare()
        free: dict[str, Any] = {"_id": claim.session, "lease_until": {"$lte": self._clock()}}
        if not claim.goes_first:
            free["$or"] = [_NO_INBOX, {"turn_id": claim.turn_id}]
            if not claim.question:
                free["$or"].append({"inbox.0.id": claim.message_id})
        update: dict[str, Any] = {"$set": self._fields(claim), "$setOnInsert": {"inbox": [], "inbox_bytes": 0}}
        update |= _without_question(claim)
        while True:
            try:
                with reachable():
                    before = await self._turns.find_one_and_update(free, update, upsert=True)
            except DuplicateKeyError:
                held = await self.running(claim.session)
                if held is None:
                    continue
                if held.claim.token == claim.token:
                    return None  # our own claim: the first response was lost, and the request was retried
                if held.alive or is_reserved_for_other(held, claim):
                    return held
                free["lease_until"] = {"$lte": self._clock()}
            else:
                if on_dead is not None and before and (dead := self._running(before)).has_died:
                    on_dead(dead.claim)
                return None

    async def seize(self, claim: Claim) -> RunningTurn | None:
        await self._prepare()
        with reachable():
            while True:
                try:
                    emptied = {"inbox": [], "inbox_bytes": 0, "expires_at": datetime.now(UTC) + ERASURE_LIFE}
                    previous = await self._turns.find_one_and_replace(
                        {"_id": claim.session}, self._fields(claim) | emptied, upsert=True
                    )
                except DuplicateKeyError:
                    continue  # another process has just claimed it
                return self._running(previous) if previous else None

    async def renew(self, claim: Claim) -> Renewal:
        with reachable():
            found = await self._turns.find_one_and_update(
                _held(claim),
                {"$set": {"lease_until": self._clock() + self._lease_seconds}} | _without_question(claim),
                return_document=ReturnDocument.AFTER,
            )
        return Renewal.LOST if found is None else Renewal(found["state"], _inbox(found))

    async def post(self, claim: Claim, message: InboxMessage, limit: int, *, stop: bool = False) -> bool:
        size = len(message.text.encode())
        has_room = _held(claim) | {
            "message_id": {"$ne": ERASE},
            "inbox.id": {"$ne": message.id},
            f"inbox.{limit - 1}": {"$exists": False},
            "$or": [_NO_INBOX, {"inbox_bytes": {"$lte": MAX_INBOX_BYTES - size}}],
        }
        entry = asdict(message)
        changes = {"expires_at": _expiry()} | ({"state": "stopping"} if stop else {})
        with reachable():
            posted = await self._turns.update_one(
                has_room, {"$push": {"inbox": entry}, "$inc": {"inbox_bytes": size}, "$set": changes}
            )
            if posted.matched_count:
                return True
            found = await self._turns.find_one(_held(claim))
        if found is None or found["message_id"] == ERASE:
            return False
        if all(known.id != message.id for known in _inbox(found)):
            raise QueueFull
        if stop:
            await self.stop(claim.session, claim.turn_id)
        return True

    async def release(self, claim: Claim, taken: Collection[str] = ()) -> bool:
        with reachable():
            if (await self._turns.delete_one(_held(claim) | _NO_INBOX)).deleted_count:
                return False
            left = {"$filter": {"input": "$inbox", "cond": {"$not": {"$in": ["$$this.id", {"$literal": list(taken)}]}}}}
            sizes = {"$map": {"input": "$inbox", "in": {"$strLenBytes": "$$this.text"}}}
            changes: list[dict[str, Any]] = [
                {"$set": {"lease_until": GIVEN_BACK, "inbox": left}},
                {"$set": {"inbox_bytes": {"$sum": sizes}}},
                {"$unset": "question"},
            ]
            is_ours = (await self._turns.update_one(_held(claim), changes)).matched_count
            is_empty = await self._turns.delete_one(_held(claim) | _NO_INBOX | {"lease_until": GIVEN_BACK})
        return bool(is_ours and not is_empty.deleted_count)

    async def let_go(self, claim: Claim) -> None:
        with reachable():
            await self._turns.update_one(_held(claim), {"$set": {"lease_until": self._clock() - CLOCK_SECONDS}})

    async def running(self, session: str) -> RunningTurn | None:
        with reachable():
            found = await self._turns.find_one({"_id": session})
        return self._running(found) if found else None

    async def stop(self, session: str, message_id: str | None = None) -> bool:
        runs: dict[str, Any] = {
            "_id": session,
            "lease_until": {"$gt": self._clock()},
            "message_id": {"$nin": [REPAIR, ERASE]},
        }
        queues = {"_id": session} | (_HAS_INBOX if message_id is None else {"inbox.id": message_id})
        if message_id is not None:
            runs["$or"] = [{name: message_id} for name in ("message_id", "turn_id", "aliases")]
        meant = {"each.id": {"$exists": True} if message_id is None else message_id}
        with reachable():
            running = await self._turns.update_one(runs, {"$set": {"state": "stopping"}})
            queued = await self._turns.update_one(
                queues, {"$set": {"inbox.$[each].stopped": True}}, array_filters=[meant]
            )
        return bool(running.matched_count or queued.matched_count)

    async def append(self, claim: Claim, number: int, frames: bytes) -> bool:
        await self._prepare()
        chunk = {"_id": _chunk_id(claim.session, claim.turn_id, number), "holder": claim.token}
        with reachable():
            try:
                await self._chunks.insert_one(chunk | {"frames": frames, "expires_at": _expiry()})
            except DuplicateKeyError:
                return bool((await self._chunks.update_one(chunk, {"$set": {"frames": frames}})).matched_count)
        return True

    async def read(self, session: str, turn_id: str, after: int = -1) -> list[tuple[int, bytes]]:
        ids = {"$gte": _chunk_id(session, turn_id, after + 1), "$lt": f"{session}#{turn_id}$"}  # `$` follows `#`
        with reachable():
            found = await self._chunks.find({"_id": ids}, {"frames": 1}).sort("_id", ASCENDING).to_list()
        return [(int(chunk["_id"].rpartition("#")[2]), bytes(chunk["frames"])) for chunk in found]

    async def enter(self, reader: Reader) -> Sequence[str]:
        await self._prepare()
        entry = {"id": reader.id, "session": reader.session, "until": self._clock() + reader.seconds}
        staying = {
            "$filter": {"input": {"$ifNull": ["$readers", []]}, "cond": {"$gt": ["$$this.until", self._clock()]}}
        }
        readers = {"$concatArrays": [staying, [{"$literal": entry}]]}
        with reachable():
            while True:
                try:
                    found = await self._readers.find_one_and_update(
                        {"_id": reader.user_id},
                        [{"$set": {"readers": readers, "expires_at": _expiry()}}],
                        upsert=True,
                        return_document=ReturnDocument.AFTER,
                    )
                except DuplicateKeyError:
                    continue  # another reader of the user has just inserted it
                known = found["readers"] if found else []
                others = [each["session"] for each in known if each["id"] != reader.id]
                return [reader.session, *others]

    async def leave(self, reader: Reader) -> None:
        with reachable():
            await self._readers.update_one({"_id": reader.user_id}, {"$pull": {"readers": {"id": reader.id}}})
            await self._readers.delete_one({"_id": reader.user_id, "readers": []})

    async def erase(self, owner: str, limit: int = 500) -> bool:
        of_owner = {"_id": {"$gte": f"{owner}#", "$lt": f"{owner}$"}}
        with reachable():
            await self._readers.delete_one({"_id": owner})
            found = await self._chunks.find(of_owner, {"_id": 1}).limit(limit).to_list()
            await self._chunks.delete_many({"_id": {"$in": [chunk["_id"] for chunk in found]}})
        return len(found) < limit

    async def orphaned(self, after: str = "", limit: int = 100) -> Sequence[str]:
        is_free = {"_id": {"$gt": after}, "lease_until": {"$lte": self._clock()}}
        free = {"$or": [_HAS_INBOX | is_free, _HAS_QUESTION | is_free]}
        with reachable():
            found = await self._turns.find(free, {"_id": 1}).sort("_id", ASCENDING).limit(limit).to_list()
        return [turn["_id"] for turn in found]

    async def _prepare(self) -> None:
        """Create the indexes. MongoDB skips those that exist."""
        if self._is_prepared:
            return
        async with self._preparing:
            if not self._is_prepared:
                free = [("lease_until", ASCENDING)]
                orphans = IndexModel(free, partialFilterExpression=_HAS_INBOX)
                not_begun = IndexModel(free, name="not_begun", partialFilterExpression=_HAS_QUESTION)
                with reachable():
                    await self._turns.create_indexes([orphans, not_begun, _EXPIRY])
                    await self._chunks.create_indexes([_EXPIRY])
                    await self._readers.create_indexes([_EXPIRY])
                self._is_prepared = True

    def _fields(self, claim: Claim) -> dict[str, Any]:
        return {
            "turn_id": claim.turn_id,
            "message_id": claim.message_id,
            "aliases": sorted(claim.aliases),
            "owner": claim.owner,
            "attempt": claim.attempt,
            "holder": claim.token,
            "state": "stopping" if claim.is_stopped else "running",
            "lease_until": self._clock() + self._lease_seconds,
            "expires_at": _expiry(),
            **({"question": claim.question} if claim.question else {}),
        }

    def _running(self, found: dict[str, Any]) -> RunningTurn:
        claim = Claim(
            found["_id"],
            found["turn_id"],
            found["message_id"],
            frozenset(found["aliases"]),
            owner=found["owner"],
            attempt=found["attempt"],
            question=bytes(found.get("question", b"")),
        )
        lease_until: float = found["lease_until"]
        left = lease_until - self._clock()
        return RunningTurn(claim, found["state"] == "stopping", left, lease_until, _inbox(found))


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


def _held(claim: Claim) -> dict[str, Any]:
    return {"_id": claim.session, "holder": claim.token}


def _without_question(claim: Claim) -> dict[str, Any]:
    return {} if claim.question else {"$unset": {"question": 1}}


def _inbox(found: dict[str, Any]) -> tuple[InboxMessage, ...]:
    return tuple(InboxMessage(**entry) for entry in found["inbox"])


def _chunk_id(session: str, turn_id: str, number: int) -> str:
    return f"{session}#{turn_id}#{number:08}"


def _expiry() -> datetime:
    return datetime.now(UTC) + LIFE
