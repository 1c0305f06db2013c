"""Reads a session's history: paths, messages by their ids, siblings, and the end of a branch. See `session.tree`."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import ASCENDING, DESCENDING

from omniagent.persistence.documents import FORKED, STEERING_ID
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.erasure import Collections
from omniagent.persistence.stored_session import lineage_of, place_of
from omniagent.session.live import SessionMessage
from omniagent.session.tree import Place, Segment, cut

Stored = dict[str, Any]


def without_parts(stored: Mapping[str, Any]) -> SessionMessage:
    """Return a message of which only its place was read."""
    return SessionMessage(
        stored["client_message_id"],
        stored["role"],
        stored["turn_number"],
        (),
        node=stored["_id"],
        parent=stored["parent"],
        branch=stored["branch"],
        lineage=lineage_of(stored["lineage"]),
    )


def any_of(ranges: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the query for several ranges of an index. Each is whole, so that MongoDB merges them in their order."""
    return ranges[0] if len(ranges) == 1 else {"$or": ranges}


class TreeReads:
    """The history of one session, as it is stored."""

    def __init__(self, store: Collections, key: str) -> None:
        self._messages = store.messages
        self._key = key

    async def path(self, at: Place, *, first: int = 1, limit: int | None = None) -> list[Stored]:
        """Return the messages on the path to a place, in order. See `SessionManager.path`.

        One query, unless messages were deleted, or there are more branches than a lineage has.
        """
        count = at.order - 2 * first + 1 if limit is None else limit
        path: list[Stored] = []
        segments: Sequence[Segment] = at.segments
        while segments and len(path) < count:
            end = Place("", segments[-1][1], segments[-1][0], tuple(segments[:-1]))
            newest = end.newest(count - len(path))
            ranges = [
                {"session_id": self._key, "branch": branch, "place": {"$gte": 2 * first, "$lte": last}}
                for branch, last in newest
            ]
            with translated():
                found = self._messages.find(any_of(ranges)).sort("place", DESCENDING).limit(count - len(path))
                path = (await found.to_list())[::-1] + path
            if len(path) < count:
                older = segments[: -len(newest)] or cut(await self.before(newest[0][0]), at.order)
                segments = [each for each in older if each[1] >= 2 * first]
        return path

    async def before(self, branch: int) -> Sequence[Segment]:
        """Return the lineage of a branch, where that of a later one goes on."""
        if branch == 0:
            return ()
        with translated():
            found = await self._messages.find_one({"session_id": self._key, "branch": branch}, {"lineage": 1})
        return lineage_of(found["lineage"]) if found is not None else ()

    async def find(self, *ids: str, at: Place | None = None) -> list[Stored]:
        """See `SessionManager.find`."""
        conditions: list[dict[str, Any]] = [{"_id": {"$in": list(ids)}}]
        if at is not None:
            named = {"session_id": self._key, "branch": {"$in": [branch for branch, _ in at.segments]}}
            # Each of the conditions has its own index.
            conditions += [named | {"client_message_id": {"$in": list(ids)}}, named | {STEERING_ID: {"$in": list(ids)}}]
        with translated():
            found = await self._messages.find({"$or": conditions}).to_list()
        return [
            each
            for each in found
            if each["session_id"] == self._key
            and (each["_id"] in ids or (at is not None and at.leads_from(place_of(each["_id"], each))))
        ]

    async def newest(self, *ids: str) -> list[Stored]:
        """Return the message that clients call so, from the newest branch that has one. See `SessionManager.find`."""
        own, names = {"session_id": self._key}, {"$in": list(ids)}
        with translated():
            newest = [("branch", DESCENDING)]
            named = await self._messages.find_one(own | {"client_message_id": names}, sort=newest)
            named = named or await self._messages.find_one(own | {STEERING_ID: names})
        return [named] if named is not None else []

    async def children(self, *parents: str) -> dict[str, list[Stored]]:
        """See `SessionManager.children`."""
        query = {"session_id": self._key, "parent": {"$in": list(parents)}}
        with translated():
            found = self._messages.find(query, _LIGHT).sort([("parent", ASCENDING), ("branch", ASCENDING)])
            children = await found.to_list()
        return {parent: [each for each in children if each["parent"] == parent] for parent in parents}

    async def tree(self, *, limit: int, after: Segment | None = None) -> list[Stored]:
        """See `SessionManager.tree`."""
        query: dict[str, Any] = {"session_id": self._key}
        if after is not None:
            branch, place = after
            query = any_of([query | {"branch": branch, "place": {"$gt": place}}, query | {"branch": {"$gt": branch}}])
        with translated():
            found = self._messages.find(query).sort([("branch", ASCENDING), ("place", ASCENDING)])
            nodes = await found.limit(max(1, limit)).to_list()
            elsewhere = {each["parent"] for each in nodes} - {"", *(each["_id"] for each in nodes)}
            parents = self._messages.find({"_id": {"$in": list(elsewhere)}}, {"_id": 1})
            deleted = elsewhere - {each["_id"] for each in await parents.to_list()} if elsewhere else ()
        for each in nodes:
            if each["parent"] in deleted:
                each["parent"] = await self.last_on(place_of(each["_id"], each).before(each["parent"]))
        return nodes

    async def last_on(self, at: Place) -> str:
        """Return the node of the last message on the path to a place that is not deleted, empty if there is none."""
        found = await self.path(at, limit=1) if at.order > 1 else []
        return str(found[-1]["_id"]) if found else ""

    async def end_of(self, place: Place) -> Place:
        """See `SessionManager.end_of`."""
        leads_from = {"$elemMatch": {"b": place.branch, "p": {"$gte": place.order}}}
        below = FORKED | {"session_id": self._key, "lineage.b": place.branch, "lineage": leads_from}
        with translated():
            own, newest = await asyncio.gather(
                self._last(place.branch), self._messages.find_one(below, _LIGHT, sort=[("created_at", DESCENDING)])
            )
            if newest is not None and (own is None or newest["created_at"] > own["created_at"]):
                own = await self._last(newest["branch"])
        return place_of(own["_id"], own) if own is not None else place

    async def _last(self, branch: int) -> Stored | None:
        query = {"session_id": self._key, "branch": branch}
        return await self._messages.find_one(query, _LIGHT, sort=[("place", DESCENDING)])


_LIGHT = dict.fromkeys(
    ("parent", "branch", "lineage", "place", "turn_number", "role", "client_message_id", "created_at"), 1
)
