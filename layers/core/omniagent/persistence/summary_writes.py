"""How summaries are written. Every transaction fences the session: two of them never overlap in what they cover."""

from pymongo import DESCENDING
from pymongo.asynchronous.client_session import AsyncClientSession

from omniagent.errors import StorageConflict
from omniagent.persistence.connection import translated
from omniagent.persistence.documents import Summary
from omniagent.persistence.store import ConversationStore, from_bson, to_bson
from omniagent.persistence.stored_values import storable_text
from omniagent.session.identity import new_id
from omniagent.session.manager import RollingSummary, SessionManager
from omniagent.tracing import SpanKind, trace_method

_SUMMARIES = {"db.collection.name": "summaries"}


class SummaryWrites:
    """The summaries of one session, and the drafts of a rebuild."""

    def __init__(self, store: ConversationStore, session: SessionManager) -> None:
        self._store = store
        self._session = session

    @trace_method(kind=SpanKind.DB, name="mongodb.latest_summary", attributes=_SUMMARIES)
    async def latest(self, *, draft: bool = False, transaction: AsyncClientSession | None = None) -> Summary | None:
        kind = {"session_id": self._session.key, "draft": draft}
        with translated():
            found = await self._store.summaries.find_one(
                kind, sort=[("end_turn_number", DESCENDING)], session=transaction
            )
        return from_bson(self._store.models.summary, found) if found else None

    @trace_method(kind=SpanKind.DB, name="mongodb.add_summary", attributes=_SUMMARIES)
    async def add(self, summary: RollingSummary, *, draft: bool) -> bool:
        """Store a summary that continues the newest. See `SessionManager.add_summary`."""
        document = await self._store.fill_or_default(lambda: self._document(summary, draft=draft), self._session)

        async def work(transaction: AsyncClientSession) -> bool:
            latest_turn = await self._fenced(transaction)
            if latest_turn is None or not summary.start_turn_number <= summary.end_turn_number < latest_turn:
                return False
            newest = await self.latest(draft=draft, transaction=transaction)
            if summary.start_turn_number != (newest.end_turn_number if newest else 0) + 1:
                return False
            await self._store.summaries.insert_one(to_bson(document), session=transaction)
            return True

        try:
            return await self._store.transaction(work)
        except StorageConflict:
            return False

    @trace_method(kind=SpanKind.DB, name="mongodb.publish_draft", attributes=_SUMMARIES)
    async def publish_draft(self) -> bool:
        """Put the newest draft in the place of all. See `SessionManager.publish_draft`."""

        async def work(transaction: AsyncClientSession) -> bool:
            newest = await self.latest(draft=True, transaction=transaction)
            if newest is None or await self._fenced(transaction) is None:
                return False
            others = {"session_id": self._session.key, "end_turn_number": {"$ne": newest.end_turn_number}}
            summaries = self._store.summaries
            await summaries.delete_many({"session_id": self._session.key, "draft": False}, session=transaction)
            await summaries.delete_many(others | {"draft": True}, session=transaction)
            await summaries.update_one(
                {"session_id": self._session.key, "draft": True},
                {"$set": {"draft": False, "start_turn_number": 1}},
                session=transaction,
            )
            return True

        return await self._store.transaction(work)

    async def _fenced(self, transaction: AsyncClientSession) -> int | None:
        """Return the session's latest turn number and keep the session as it is until the transaction ends.

        A read alone does not: only two writes of one document conflict, and only when they change something.
        """
        found = await self._store.sessions.find_one_and_update(
            {"_id": self._session.key, "erased_at": None},
            {"$set": {"fence": new_id()}},
            projection={"latest_turn_number": 1},
            session=transaction,
        )
        return found["latest_turn_number"] if found else None

    def _document(self, summary: RollingSummary, *, draft: bool) -> Summary:
        return self._store.models.summary(
            session_id=self._session.key,
            draft=draft,
            content=storable_text(summary.content),
            token_count=summary.token_count,
            start_turn_number=summary.start_turn_number,
            end_turn_number=summary.end_turn_number,
        )
