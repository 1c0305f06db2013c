"""The user's document: who they are, and their slots for running turns."""

from collections.abc import Sequence
from typing import Any

from pymongo import ReturnDocument

from omniagent.errors import SessionErased
from omniagent.persistence.connection import translated
from omniagent.persistence.erasure import Erasure
from omniagent.persistence.store import ConversationStore, to_bson
from omniagent.session.manager import SessionManager
from omniagent.tracing import SpanKind, trace_method

_USERS = {"db.collection.name": "users"}
_ERASED = "The user is being deleted."


class UserSlots:
    """The slots of one session's user.

    No transaction ever writes the user's document: one that a dead process left open would lock the user out.
    """

    def __init__(self, store: ConversationStore, session: SessionManager) -> None:
        self._store = store
        self._session = session
        self._is_known = False

    @trace_method(kind=SpanKind.DB, name="mongodb.admit", attributes=_USERS)
    async def admit(self, limit: int) -> Sequence[str]:
        """Take a slot for this session. See `SessionManager.admit`."""
        while True:
            user = await self._take_slot(limit) or await self._insert([self._session.key])
            if user.get("erased_at") is not None:
                raise SessionErased(_ERASED)
            self._is_known = True
            running: list[str] = user.get("running") or []
            if self._session.key in running:
                return ()
            if len(running) >= limit:
                return running

    @trace_method(kind=SpanKind.DB, name="mongodb.withdraw", attributes=_USERS)
    async def withdraw(self, *keys: str) -> None:
        """Give back slots. See `SessionManager.withdraw`."""
        with translated():
            await self._store.users.update_one({"_id": self._session.user_id}, {"$pullAll": {"running": list(keys)}})

    async def ensure_user(self) -> None:
        """Make the user's document, unless it was seen already."""
        if self._is_known:
            return
        with translated():
            user = await self._store.users.find_one({"_id": self._session.user_id}, {"erased_at": 1})
        if (user or await self._insert([])).get("erased_at") is not None:
            raise SessionErased(_ERASED)
        self._is_known = True

    async def check_not_erased(self, key: str) -> None:
        """Refuse a session that was made while its user was being deleted, and delete it, too.

        Asked after the session is stored: a deletion that has not seen the session marked the user before.
        """
        with translated():
            user = await self._store.users.find_one({"_id": self._session.user_id}, {"erased_at": 1})
        if user is not None and user.get("erased_at") is None:
            return
        erasure = Erasure(self._store)
        await erasure.mark_erased(key)
        await erasure.erase_some(key)
        raise SessionErased(_ERASED)

    async def _take_slot(self, limit: int) -> dict[str, Any] | None:
        key = self._session.key
        running = {"$ifNull": ["$running", []]}
        may_run = {"$and": [{"$not": [{"$in": [key, running]}]}, {"$lt": [{"$size": running}, limit]}]}
        changes: dict[str, Any] = {
            "running": {"$cond": [may_run, {"$concatArrays": [running, [key]]}, running]},
        }
        if self._session.category is not None:
            changes["category"] = {"$literal": self._session.category}
        with translated():
            return await self._store.users.find_one_and_update(
                {"_id": self._session.user_id, "erased_at": None},
                [{"$set": changes}],
                projection={"running": 1},
                return_document=ReturnDocument.AFTER,
            )

    async def _insert(self, running: list[str]) -> dict[str, Any]:
        """Make the user's document if there is none, and return what there is."""
        session = self._session
        document = self._store.models.user(
            id=session.user_id, client_id=session.user, category=session.category, running=running
        )
        fields = to_bson(await self._store.fill(document, session))
        with translated():
            user: dict[str, Any] | None = await self._store.users.find_one_and_update(
                {"_id": fields.pop("_id")},
                {"$setOnInsert": fields},
                projection={"running": 1, "erased_at": 1},
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        return user or {}
