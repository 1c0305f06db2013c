"""Reads a session's history as it is stored: paths, their summaries, messages by their ids. See `session.tree`."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import ASCENDING, DESCENDING
from pymongo.asynchronous.client_session import AsyncClientSession

from omniagent.persistence.documents import FORKED, STEERING_ID
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.erasure import Collections
from omniagent.persistence.stored_session import lineage_of, place_of
from omniagent.session.live import SessionMessage
from omniagent.session.tree import Place, Segment, cut

Stored = dict[str, Any]


async def read_path(
    store: Collections, key: str, at: Place, *, first: int = 1, limit: int | None = None
) -> list[Stored]:
    """Return the messages on the path to a place, in order. See `SessionManager.path`.

    One query, unless messages were deleted, or there are more branches than a lineage has.
    """
    count = at.order - 2 * first + 1 if limit is None else limit
    path: list[Stored] = []
    segments: Sequence[Segment] = at.segments
    while segments and len(path) < count:
        last = _newest(segments, count - len(path))
        # Each range of the index is complete, so that MongoDB merges them in their order.
        ranges = [
            {"session_id": key, "branch": branch, "place": {"$gte": 2 * first, "$lte": order}} for branch, order in last
        ]
        with translated():
            found = store.messages.find({"$or": ranges}).sort("place", DESCENDING).limit(count - len(path))
            path = (await found.to_list())[::-1] + path
        if len(path) == count or last[0][0] == 0:
            break
        older = segments[: -len(last)] or cut(await _before(store, key, last[0][0]), at.order)
        segments = [each for each in older if each[1] >= 2 * first]
    return path


def _newest(segments: Sequence[Segment], count: int) -> Sequence[Segment]:
    """Return the end of a path that has at least so many places."""
    for index in range(len(segments) - 1, 0, -1):
        if segments[-1][1] - segments[index - 1][1] >= count:
            return segments[index:]
    return segments


async def read_summary(
    store: Collections, key: str, at: Place, *, draft: bool = False, transaction: AsyncClientSession | None = None
) -> Stored | None:
    """Return the newest summary on the path to a place."""
    segments: Sequence[Segment] = at.segments
    while segments:
        kind = {"session_id": key, "draft": draft}
        ends = [kind | {"branch": branch, "end_turn_number": {"$lte": (last - 1) // 2}} for branch, last in segments]
        with translated():
            order = [("end_turn_number", DESCENDING)]
            found = await store.summaries.find_one({"$or": ends}, sort=order, session=transaction)
        if found is not None or segments[0][0] == 0:
            return found
        segments = await _before(store, key, segments[0][0])
    return None


async def _before(store: Collections, key: str, branch: int) -> Sequence[Segment]:
    """Return the lineage of a branch, where that of a later one goes on."""
    with translated():
        found = await store.messages.find_one({"session_id": key, "branch": branch}, {"lineage": 1})
    return lineage_of(found["lineage"]) if found is not None else ()


async def find_messages(
    store: Collections, key: str, *ids: str, at: Place | None = None, anywhere: str = ""
) -> list[Stored]:
    """See `SessionManager.find`. One query. Of messages that share an id it reads one on the path, and the newest."""
    own, named = {"session_id": key}, {"$in": list(ids)}
    any_of: list[Stored] = [own | {"_id": named}]
    if at is not None:
        on_branches = own | {"branch": {"$in": [branch for branch, _ in at.segments]}}
        # Each of the conditions has its own index.
        any_of += [on_branches | {"client_message_id": named}, on_branches | {STEERING_ID: named}]
    pipeline: list[Stored] = [{"$match": {"$or": any_of}}]
    if anywhere:
        sent = [{"$match": own | {"client_message_id": anywhere}}, {"$sort": {"branch": DESCENDING}}]
        for condition in (sent, [{"$match": own | {STEERING_ID: anywhere}}]):
            one = [*condition, {"$limit": 1}, {"$set": {"is_newest": True}}]
            pipeline.append({"$unionWith": {"coll": store.messages.name, "pipeline": one}})
    with translated():
        stored = await (await store.messages.aggregate(pipeline)).to_list() if ids else []
    direct = [each for each in stored if not each.get("is_newest")]
    newest = [each for each in stored if each.pop("is_newest", False)][:1]
    found = [
        each for each in direct if each["_id"] in ids or (at is not None and at.leads_from(place_of(each["_id"], each)))
    ]
    return found + [each for each in newest if each not in found]


async def read_children(store: Collections, key: str, *parents: str) -> dict[str, list[Stored]]:
    """See `SessionManager.children`."""
    query = {"session_id": key, "parent": {"$in": list(parents)}}
    with translated():
        found = store.messages.find(query, _LIGHT).sort([("parent", ASCENDING), ("branch", ASCENDING)])
        children = await found.to_list()
    return {parent: [each for each in children if each["parent"] == parent] for parent in parents}


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


async def read_tree(store: Collections, key: str, *, limit: int, after: Segment | None = None) -> list[Stored]:
    """See `SessionManager.tree`."""
    query: dict[str, Any] = {"session_id": key}
    if after is not None:
        branch, place = after
        query = {"$or": [query | {"branch": branch, "place": {"$gt": place}}, query | {"branch": {"$gt": branch}}]}
    with translated():
        found = store.messages.find(query).sort([("branch", ASCENDING), ("place", ASCENDING)])
        nodes = await found.limit(max(1, limit)).to_list()
        elsewhere = {each["parent"] for each in nodes} - {"", *(each["_id"] for each in nodes)}
        parents = store.messages.find({"_id": {"$in": list(elsewhere)}}, {"_id": 1})
        deleted = elsewhere - {each["_id"] for each in await parents.to_list()} if elsewhere else ()
    for each in nodes:
        if each["parent"] in deleted:
            each["parent"] = await last_node(store, key, place_of(each["_id"], each).before(each["parent"]))
    return nodes


async def last_node(store: Collections, key: str, at: Place) -> str:
    """Return the node of the last message on the path to a place that is not deleted, empty if there is none."""
    found = await read_path(store, key, at, limit=1) if at.order > 1 else []
    return str(found[-1]["_id"]) if found else ""


async def read_end(store: Collections, key: str, place: Place) -> Place:
    """See `SessionManager.end_of`."""
    leads_from = {"$elemMatch": {"b": place.branch, "p": {"$gte": place.order}}}
    below = FORKED | {"session_id": key, "lineage.b": place.branch, "lineage": leads_from}
    with translated():
        own, newest_below = await asyncio.gather(
            _last(store, key, place.branch), store.messages.find_one(below, _LIGHT, sort=[("created_at", DESCENDING)])
        )
        if newest_below is not None and (own is None or newest_below["created_at"] > own["created_at"]):
            own = await _last(store, key, newest_below["branch"])
    return place_of(own["_id"], own) if own is not None else place


async def _last(store: Collections, key: str, branch: int) -> Stored | None:
    query = {"session_id": key, "branch": branch}
    return await store.messages.find_one(query, _LIGHT, sort=[("place", DESCENDING)])


_LIGHT = dict.fromkeys(
    ("parent", "branch", "lineage", "place", "turn_number", "role", "client_message_id", "created_at"), 1
)
