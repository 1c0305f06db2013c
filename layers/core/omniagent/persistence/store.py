"""Every read and every transaction of a turn. All of them start from a session's key, which names its owner."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import pymongo
from bson import ObjectId
from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure

from omniagent.errors import StorageConflict, TooManyTurns, TurnLost
from omniagent.messages import Part, Status, close_open_calls
from omniagent.persistence.connection import translated
from omniagent.persistence.contracts import DocumentModels
from omniagent.persistence.documents import Message, Session, Summary, now
from omniagent.persistence.orphans import end_orphans
from omniagent.tracing import SpanKind, trace_method

Result = TypeVar("Result")
LONGEST_TURN = timedelta(minutes=15)
_WRITE_CONFLICT = 112


@dataclass(frozen=True, slots=True)
class Owner:
    """The user that a session belongs to, as the documents know them."""

    user_id: str
    client_id: str
    category: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a turn needs to know before it starts. `messages` is bounded by the window and in order."""

    session: Session | None
    summary: Summary | None
    messages: list[Message]
    earlier: Message | None
    """The message that already has the id that was asked for."""


@dataclass(frozen=True, slots=True)
class TurnStart:
    """A user's message and the turn that is about to answer it."""

    owner: Owner
    key: str
    turn_id: str
    turn_number: int
    message_id: str
    parts: Sequence[Part]
    running_at_most: int | None = None
    """The owner's turns that may be running, this one among them; None for any number."""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """An answer, and the summary that was made beside it."""

    key: str
    turn_id: str
    turn_number: int
    parts: Sequence[Part]
    status: Status
    usage: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    previous_summary_id: str | None = None
    summary: Summary | None = None
    keep_previous: bool = False
    """Leave the answer that the turn already has: a regeneration that failed."""


class ConversationStore:
    """The conversations in MongoDB. `sessions` and `messages` of the catalog build on the same documents."""

    def __init__(self, client: AsyncMongoClient[Any], models: DocumentModels, *, timeout_seconds: float) -> None:
        self._client = client
        self._timeout_seconds = timeout_seconds
        self.models = models

    @trace_method(kind=SpanKind.DB, name="mongodb.snapshot")
    async def snapshot(self, key: str, *, turns: int, message_id: str | None = None) -> Snapshot:
        """Read what a turn starts from: of the messages only those after the summary, and the last turn in any case."""
        summaries = self.models.summary.find({"session_id": key}).sort("-end_turn_number")
        with translated():
            session, latest, earlier = await asyncio.gather(
                self.models.session.find_one({"_id": key}),
                summaries.first_or_none(),
                self._message_by_id(key, message_id),
            )
            if session is None:
                return Snapshot(None, None, [], None)
            summarized_to = latest.end_turn_number if latest else 0
            after = min(summarized_to, session.latest_turn_number - 1)
            window = self.models.message.find({"session_id": key, "turn_number": {"$gt": after}})
            recent = await window.sort("-turn_number", "+role").limit(2 * turns).to_list()
        return Snapshot(session, latest, recent[::-1], earlier)

    @trace_method(kind=SpanKind.DB, name="mongodb.answer")
    async def answer(self, key: str, turn_number: int) -> Message | None:
        """Return the stored answer of a turn."""
        with translated():
            return await self.models.message.find_one(
                {"session_id": key, "turn_number": turn_number, "role": "assistant"}
            )

    @trace_method(kind=SpanKind.DB, name="mongodb.begin_turn")
    async def begin_turn(self, start: TurnStart) -> None:
        """Make the user's message durable and fence the session for this turn.

        Raises `StorageConflict` when the session is not in the state that the turn was started from.
        """

        async def work(transaction: AsyncClientSession) -> None:
            if start.turn_number == 1:
                await self._ensure_session(start, transaction)
            await self._admit(start.key, start.running_at_most, transaction)
            if not await self._advance(start, transaction):
                raise StorageConflict(f"turn {start.turn_number} cannot start: the session has moved on")
            await self._message(start).insert(session=transaction)

        await self.transaction(work)

    @trace_method(kind=SpanKind.DB, name="mongodb.restart_turn")
    async def restart_turn(
        self, key: str, *, turn_id: str, turn_number: int, running_at_most: int | None = None
    ) -> None:
        """Fence the session for answering its last turn once more."""

        async def work(transaction: AsyncClientSession) -> None:
            await self._admit(key, running_at_most, transaction)
            updated = await self.models.session.get_pymongo_collection().update_one(
                {"_id": key, "latest_turn_number": turn_number, "active_turn_id": None},
                {"$set": {"active_turn_id": turn_id, "updated_at": now()}},
                session=transaction,
            )
            if not updated.matched_count:
                raise StorageConflict(f"turn {turn_number} cannot be answered again: the session has moved on")

        # A single write would wait for the transaction of a dead process; a transaction meets it and ends it.
        await self.transaction(work)

    @trace_method(kind=SpanKind.DB, name="mongodb.finish_turn")
    async def finish_turn(self, end: TurnEnd) -> None:
        """Write the answer and the summary in one transaction. Raises `TurnLost` when the turn was taken over."""
        try:
            await self._finish(end, end.summary)
        except StorageConflict:
            if end.summary is None:
                raise
            # Another writer stored a summary for these turns first: theirs stands, the answer must not be lost.
            await self._finish(end, None)

    @trace_method(kind=SpanKind.DB, name="mongodb.repair_turn")
    async def repair_turn(self, key: str, *, turn_id: str, parts: Sequence[Part]) -> bool:
        """Close a turn whose process died. Returns False when it was closed by someone else meanwhile."""

        async def work(transaction: AsyncClientSession) -> bool:
            session = await self._release(key, turn_id, transaction)
            if session is None:
                return False
            number = session["latest_turn_number"]
            at = {"session_id": key, "turn_number": number, "role": "assistant"}
            messages = self.models.message.get_pymongo_collection()
            before = await messages.find_one(at, {"status": 1}, session=transaction)
            has_content = any(part.type != "step-start" for part in parts)
            # A whole answer outlives a regeneration that died. Half of one gives way to what its retry had shown.
            if before is None or (has_content and before["status"] != "complete"):
                await messages.delete_one(at, session=transaction)
                await self._answer(TurnEnd(key, turn_id, number, parts, "interrupted")).insert(session=transaction)
            return True

        return await self.transaction(work)

    @trace_method(kind=SpanKind.DB, name="mongodb.running_turns")
    async def running_turns(self, user_id: str, *, at_most: int) -> list[str]:
        """Return the user's sessions that are being answered, the latest first, as far as MongoDB knows.

        A turn that outlived any Lambda does not count.
        """
        with translated():
            found = self.models.session.get_pymongo_collection().find(_answering(user_id), {"_id": 1})
            return [session["_id"] async for session in found.sort("updated_at", pymongo.DESCENDING).limit(at_most)]

    async def transaction(
        self, work: Callable[[AsyncClientSession], Awaitable[Result]], *, timeout_seconds: float | None = None
    ) -> Result:
        """Run `work` in a transaction, retried by the driver within the time limit."""

        async def attempt(session: AsyncClientSession) -> Result:
            try:
                return await work(session)
            except OperationFailure as exc:
                if exc.code == _WRITE_CONFLICT:
                    await end_orphans(self._client)
                raise

        with translated(), pymongo.timeout(timeout_seconds or self._timeout_seconds):
            async with self._client.start_session() as session:
                return await session.with_transaction(attempt)

    async def _admit(self, key: str, at_most: int | None, transaction: AsyncClientSession) -> None:
        """Refuse one turn too many of a user.

        The write makes the user's turns begin one after the other: counting alone would let in any number of those
        that begin at the same moment.
        """
        if at_most is None:
            return
        user_id = key.partition(":")[0]
        users, sessions = (model.get_pymongo_collection() for model in (self.models.user, self.models.session))
        await users.update_one({"_id": user_id}, {"$set": {"fence": ObjectId()}}, session=transaction)
        running = await sessions.count_documents(_answering(user_id), limit=at_most, session=transaction)
        if running >= at_most:
            raise TooManyTurns

    async def _finish(self, end: TurnEnd, summary: Summary | None) -> None:
        async def work(transaction: AsyncClientSession) -> None:
            if await self._release(end.key, end.turn_id, transaction) is None:
                if await self._is_stored(end, transaction):
                    return
                raise TurnLost(f"turn {end.turn_id} no longer holds its session")
            at = {"session_id": end.key, "turn_number": end.turn_number, "role": "assistant"}
            messages = self.models.message.get_pymongo_collection()
            if not (end.keep_previous and await messages.find_one(at, {"_id": 1}, session=transaction)):
                await messages.delete_one(at, session=transaction)
                await self._answer(end).insert(session=transaction)
            if summary is not None:
                await summary.insert(session=transaction)

        await self.transaction(work)

    async def _is_stored(self, end: TurnEnd, transaction: AsyncClientSession) -> bool:
        """Whether an earlier attempt was committed, though nobody could say so. A repair leaves another status."""
        stored = {"session_id": end.key, "client_message_id": end.turn_id, "status": end.status}
        found = await self.models.message.get_pymongo_collection().find_one(stored, {"_id": 1}, session=transaction)
        return found is not None

    async def _release(self, key: str, turn_id: str, transaction: AsyncClientSession) -> dict[str, Any] | None:
        sessions = self.models.session.get_pymongo_collection()
        held = {"_id": key, "active_turn_id": turn_id}
        free = {"$set": {"active_turn_id": None, "updated_at": now()}}
        found: dict[str, Any] | None = await sessions.find_one_and_update(held, free, session=transaction)
        return found

    async def _ensure_session(self, start: TurnStart, transaction: AsyncClientSession) -> None:
        owner = start.owner
        user = self.models.user(id=owner.user_id, client_id=owner.client_id, category=owner.category)
        session = self.models.session(id=start.key, user_id=owner.user_id)
        for document in (user, session):
            await document.get_pymongo_collection().update_one(
                {"_id": document.id},
                {"$setOnInsert": document.model_dump(exclude={"id", "revision_id"})},
                upsert=True,
                session=transaction,
            )

    async def _advance(self, start: TurnStart, transaction: AsyncClientSession) -> bool:
        updated = await self.models.session.get_pymongo_collection().update_one(
            {"_id": start.key, "latest_turn_number": start.turn_number - 1, "active_turn_id": None},
            {
                "$set": {
                    "latest_turn_number": start.turn_number,
                    "active_turn_id": start.turn_id,
                    "updated_at": now(),
                }
            },
            session=transaction,
        )
        return bool(updated.matched_count)

    async def _message_by_id(self, key: str, message_id: str | None) -> Message | None:
        if message_id is None:
            return None
        return await self.models.message.find_one({"session_id": key, "client_message_id": message_id})

    def _message(self, start: TurnStart) -> Message:
        return self.models.message(
            session_id=start.key,
            turn_number=start.turn_number,
            role="user",
            parts=list(start.parts),
            client_message_id=start.message_id,
        )

    def _answer(self, end: TurnEnd) -> Message:
        return self.models.message(
            session_id=end.key,
            turn_number=end.turn_number,
            role="assistant",
            parts=close_open_calls(end.parts),
            status=end.status,
            client_message_id=end.turn_id,
            usage=end.usage,
            metadata=end.metadata,
            previous_summary_id=end.previous_summary_id,
        )


def _answering(user_id: str) -> dict[str, Any]:
    """The user's sessions that have a turn that began within the longest life of a Lambda."""
    since = now() - LONGEST_TURN
    return {"user_id": user_id, "active_turn_id": {"$type": "string"}, "updated_at": {"$gt": since}}
