"""`MongoHistory`: reads one session's history: paths, summaries, messages by their ids. See `session.live`."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pymongo import ASCENDING, DESCENDING
from pymongo.asynchronous.client_session import AsyncClientSession

from omniagent.persistence.documents import FORKED, STEERING_ID, api_values
from omniagent.persistence.driver_errors import on_mongodb
from omniagent.persistence.store import ConversationStore
from omniagent.persistence.stored_session import from_bson, head_of, lineage_of, message_of
from omniagent.session.history import SessionHistory
from omniagent.session.live import Place, Segment, SessionHead, SessionMessage, cut
from omniagent.session.window import RollingSummary

SUMMARY = [each.name for each in fields(RollingSummary) if each.name != "basis"]
_HEAD = dict.fromkeys(
    ("version", "leaf", "branches", "turn", "queue", "name", "agent", "updated_at", "summary_basis", "erased_at"), 1
)
_WITHOUT_PARTS = {"parts": 0, "metadata": 0}


class MongoHistory(SessionHistory):
    """The reads of one session."""

    def __init__(self, store: ConversationStore, key: str) -> None:
        self.store = store
        self.key = key

    @on_mongodb("sessions")
    async def head(self, *, erased: bool = False) -> SessionHead | None:
        alive = {} if erased else {"erased_at": None}
        found = await self.store.sessions.find_one({"_id": self.key} | alive, _HEAD)
        return head_of(found) if found else None

    @on_mongodb("messages")
    async def path(self, at: Place, *, first: int = 1, limit: int | None = None) -> Sequence[SessionMessage]:
        # One query, unless messages were deleted, or there are more branches than a lineage has.
        count = at.order - 2 * first + 1 if limit is None else limit
        path: list[SessionMessage] = []
        segments: Sequence[Segment] = at.segments
        while segments and len(path) < count:
            last = _newest(segments, count - len(path))
            # Each range of the index is complete, so that MongoDB merges them in their order.
            ranges = [
                {"session_id": self.key, "branch": branch, "place": {"$gte": 2 * first, "$lte": order}}
                for branch, order in last
            ]
            found = self.store.messages.find({"$or": ranges}).sort("place", DESCENDING).limit(count - len(path))
            path = [*map(self._message, (await found.to_list())[::-1]), *path]
            if len(path) == count or last[0][0] == 0:
                break
            older = segments[: -len(last)] or cut(await self._lineage(last[0][0]), at.order)
            segments = [each for each in older if each[1] >= 2 * first]
        return path

    @on_mongodb("messages")
    async def find(self, *ids: str, at: Place | None = None, anywhere: str = "") -> Sequence[SessionMessage]:
        # One query. Of messages that share an id it reads one on the path, and the newest.
        own, named = {"session_id": self.key}, {"$in": list(ids)}
        any_of: list[dict[str, Any]] = [own | {"_id": named}]
        if at is not None:
            on_branches = own | {"branch": {"$in": [branch for branch, _ in at.segments]}}
            # Each of the conditions has its own index.
            any_of += [on_branches | {"client_message_id": named}, on_branches | {STEERING_ID: named}]
        pipeline: list[dict[str, Any]] = [{"$match": {"$or": any_of}}]
        if anywhere:
            sent = [{"$match": own | {"client_message_id": anywhere}}, {"$sort": {"branch": DESCENDING}}]
            for condition in (sent, [{"$match": own | {STEERING_ID: anywhere}}]):
                one = [*condition, {"$limit": 1}, {"$set": {"is_newest": True}}]
                pipeline.append({"$unionWith": {"coll": self.store.messages.name, "pipeline": one}})
        stored = await (await self.store.messages.aggregate(pipeline)).to_list() if ids else []
        found = [self._message(each) for each in stored if not each.get("is_newest")]
        newest = [self._message(each) for each in stored if each.get("is_newest")][:1]
        found = [each for each in found if each.node in ids or (at is not None and at.leads_from(each.place))]
        return found + [each for each in newest if each.node not in [known.node for known in found]]

    @on_mongodb("messages")
    async def children(self, *parents: str) -> Mapping[str, Sequence[SessionMessage]]:
        query = {"session_id": self.key, "parent": {"$in": list(parents)}}
        found = self.store.messages.find(query, _WITHOUT_PARTS).sort([("parent", ASCENDING), ("branch", ASCENDING)])
        children = [message_of(each) for each in await found.to_list()]
        return {parent: [each for each in children if each.parent == parent] for parent in parents}

    @on_mongodb("messages")
    async def tree(self, *, limit: int, after: Place | None = None) -> Sequence[SessionMessage]:
        query: dict[str, Any] = {"session_id": self.key}
        if after is not None:
            rest = ({"branch": after.branch, "place": {"$gt": after.order}}, {"branch": {"$gt": after.branch}})
            query = {"$or": [query | each for each in rest]}
        found = self.store.messages.find(query).sort([("branch", ASCENDING), ("place", ASCENDING)])
        nodes = [self._message(each) for each in await found.limit(max(1, limit)).to_list()]
        elsewhere = {each.parent for each in nodes} - {"", *(each.node for each in nodes)}
        parents = self.store.messages.find({"_id": {"$in": list(elsewhere)}}, {"_id": 1})
        deleted = elsewhere - {each["_id"] for each in await parents.to_list()} if elsewhere else ()
        return [
            replace(each, parent=await self.last_node(each.place.before(each.parent)))
            if each.parent in deleted
            else each
            for each in nodes
        ]

    async def last_node(self, at: Place) -> str:
        """Read the node of the last message on the path to a place that is not deleted. Empty if there is none."""
        found = await self.path(at, limit=1) if at.order > 1 else []
        return found[-1].node if found else ""

    @on_mongodb("messages")
    async def end_of(self, place: Place) -> Place:
        leads_from = {"$elemMatch": {"b": place.branch, "p": {"$gte": place.order}}}
        below = FORKED | {"session_id": self.key, "lineage.b": place.branch, "lineage": leads_from}
        newest = self.store.messages.find_one(below, _WITHOUT_PARTS, sort=[("created_at", DESCENDING)])
        own, newest_below = await asyncio.gather(self._last(place.branch), newest)
        if newest_below is not None and (own is None or newest_below["created_at"] > own["created_at"]):
            own = await self._last(newest_below["branch"])
        return message_of(own).place if own is not None else place

    @on_mongodb("summaries")
    async def latest_summary(self, at: Place, *, draft: bool = False) -> RollingSummary | None:
        found = await self._newest_summary(at, draft=draft)
        return RollingSummary(**{name: found[name] for name in SUMMARY}) if found else None

    async def _newest_summary(
        self, at: Place, *, draft: bool, transaction: AsyncClientSession | None = None
    ) -> Mapping[str, Any] | None:
        segments: Sequence[Segment] = at.segments
        while segments:
            kind = {"session_id": self.key, "draft": draft}
            ends = [{"branch": branch, "end_turn_number": {"$lte": (last - 1) // 2}} for branch, last in segments]
            query, order = {"$or": [kind | end for end in ends]}, [("end_turn_number", DESCENDING)]
            found = await self.store.summaries.find_one(query, sort=order, session=transaction)
            if found is not None or segments[0][0] == 0:
                return found
            segments = await self._lineage(segments[0][0])
        return None

    def _message(self, stored: Mapping[str, Any]) -> SessionMessage:
        """Read a message, with the fields of a team's own that its class shows."""
        model, message = self.store.models.message, message_of(stored)
        return replace(message, extra=api_values(from_bson(model, stored))) if model.api_fields else message

    async def _lineage(self, branch: int) -> Sequence[Segment]:
        """Read the lineage of a branch, where that of a later one goes on."""
        found = await self.store.messages.find_one({"session_id": self.key, "branch": branch}, {"lineage": 1})
        return lineage_of(found["lineage"]) if found is not None else ()

    async def _last(self, branch: int) -> Mapping[str, Any] | None:
        query = {"session_id": self.key, "branch": branch}
        return await self.store.messages.find_one(query, _WITHOUT_PARTS, sort=[("place", DESCENDING)])


def _newest(segments: Sequence[Segment], count: int) -> Sequence[Segment]:
    """Return the end of a path that has at least so many places."""
    for index in range(len(segments) - 1, 0, -1):
        if segments[-1][1] - segments[index - 1][1] >= count:
            return segments[index:]
    return segments
