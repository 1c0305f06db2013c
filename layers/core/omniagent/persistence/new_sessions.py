"""Creates users and sessions, but no session of a user who is being deleted."""

from dataclasses import dataclass
from typing import Any

from pymongo import ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession

from omniagent.errors import SessionErased
from omniagent.persistence.documents import Session
from omniagent.persistence.erasure import Erasure
from omniagent.persistence.store import ConversationStore, to_bson, translated
from omniagent.session.manager import SessionManager
from omniagent.tracing import SpanKind, trace_method

USER_ERASED = "The user is being deleted."
_SESSIONS = {"db.collection.name": "sessions"}


@dataclass(slots=True)
class NewSessions:
    """Creates the documents of one session and of its user."""

    store: ConversationStore
    session: SessionManager
    user_is_known: bool = False
    """The user's document exists and need not be created."""

    @trace_method(kind=SpanKind.DB, name="mongodb.create_session", attributes=_SESSIONS)
    async def create_session(self) -> None:
        """Create the session. See `SessionManager.create`."""
        with translated():
            found = await self.store.sessions.find_one({"_id": self.session.key}, {"erased_at": 1})
        if found is not None:
            if found.get("erased_at") is not None:
                raise SessionErased
            return
        document = await self.new_session()

        async def work(transaction: AsyncClientSession) -> bool:
            return document is not None and await self.insert_session(document, transaction)

        if await self.store.transaction(work):
            await self.check_not_erased()

    async def new_session(self) -> Session | None:
        """Build the session's document. With a `fill` hook, None if it exists: the hook must see only new documents."""
        session = self.session
        await self.ensure_user()
        if self.store.models.fill is not None:
            with translated():
                if await self.store.sessions.find_one({"_id": session.key}, {"_id": 1}):
                    return None
        document = self.store.models.session(id=session.key, user_id=session.user_id)
        return await self.store.fill(document, session)

    async def insert_session(self, document: Session, transaction: AsyncClientSession) -> bool:
        """Insert the session's document, unless it exists. Returns whether it is new."""
        fields = to_bson(document)
        inserted = await self.store.sessions.update_one(
            {"_id": fields.pop("_id")}, {"$setOnInsert": fields}, upsert=True, session=transaction
        )
        if inserted.upserted_id is None:
            return False
        await self.refuse_erased(transaction)
        return True

    async def ensure_user(self) -> None:
        """Create the user's document, unless it exists. Raises `SessionErased` if the user is being deleted."""
        if self.user_is_known:
            return
        with translated():
            user = await self.store.users.find_one({"_id": self.session.user_id}, {"erased_at": 1})
        if (user or await self.insert_user([])).get("erased_at") is not None:
            raise SessionErased(USER_ERASED)
        self.user_is_known = True

    async def refuse_erased(self, transaction: AsyncClientSession) -> None:
        """Raise `SessionErased` if the transaction sees that the user is being deleted.

        A deletion that it cannot see yet began after this session's `created_at`, so its delayed check finds it.
        """
        user = await self.store.users.find_one(
            {"_id": self.session.user_id, "erased_at": None}, {"_id": 1}, session=transaction
        )
        if user is None:
            raise SessionErased(USER_ERASED)

    async def check_not_erased(self) -> None:
        """If the user is being deleted, delete the new session and raise `SessionErased`.

        Call it after the session is stored: a deletion that missed the session has marked the user before.
        """
        with translated():
            user = await self.store.users.find_one({"_id": self.session.user_id}, {"erased_at": 1})
        if user is not None and user.get("erased_at") is None:
            return
        erasure = Erasure(self.store)
        await erasure.mark_erased(self.session.key)
        await erasure.erase_some(self.session.key)
        raise SessionErased(USER_ERASED)

    async def insert_user(self, running: list[str]) -> dict[str, Any]:
        """Insert the user's document if there is none. Returns `running` and `erased_at` of the stored one."""
        session = self.session
        document = self.store.models.user(
            id=session.user_id, client_id=session.user, category=session.category, running=running
        )
        fields = to_bson(await self.store.fill(document, session))
        with translated():
            user: dict[str, Any] | None = await self.store.users.find_one_and_update(
                {"_id": fields.pop("_id")},
                {"$setOnInsert": fields},
                projection={"running": 1, "erased_at": 1},
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        return user or {}
