"""The reads and writes of the sessions API.

Sessions are addressed by their key, which starts with the owner's id: no query here can reach another user's session.
It gets the same answer as a session that does not exist, and so does one that is being deleted. Lists continue from a
cursor, never by skipping.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import pymongo
from pymongo import DESCENDING
from pymongo import errors as driver
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.cursor import AsyncCursor

from omniagent.errors import InvalidRequest, NotFound, SessionErased, StorageUnavailable, TurnInProgress, UnknownRequest
from omniagent.persistence.cursor import Cursor
from omniagent.persistence.documents import HAS_REQUESTS, UNANNOUNCED, WAITING, Message, Session, Summary
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore, Stored, from_bson
from omniagent.persistence.stored_session import head_of, place_of, session_message
from omniagent.persistence.stored_values import now
from omniagent.persistence.tree_reads import (
    find_messages,
    last_node,
    read_children,
    read_path,
    read_summary,
    read_tree,
    without_parts,
)
from omniagent.session.ids import new_id, public_session_id, session_key
from omniagent.session.live import SessionMessage, with_siblings
from omniagent.session.tree import Segment
from omniagent.tracing import SpanKind, trace_method

Item = TypeVar("Item")
SEARCH_SECONDS, NAMES_SECONDS = 1.0, 0.5
SEARCHED_AT_ONCE = 20
"""Sessions. What was found in earlier ones is returned if the time is over."""
QUEUED_LIFE = timedelta(hours=1)
"""Longer than the queue keeps redelivering a job that fails."""
_NEWEST_SESSIONS = [("updated_at", DESCENDING), ("_id", DESCENDING)]
_SESSIONS = {"db.collection.name": "sessions"}
_MESSAGES = {"db.collection.name": "messages"}
_SUMMARIES = {"db.collection.name": "summaries"}


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list. `before` is the cursor of the next page, None on the last."""

    items: list[Item]
    before: str | None
    is_complete: bool = True
    """False if a search ran out of time: other items may match, too."""


@dataclass(frozen=True, slots=True)
class PathMessage:
    """A message on a path, as it is stored, and with its siblings."""

    document: Message
    message: SessionMessage

    @property
    def turn_number(self) -> int:
        return self.document.turn_number


class Catalog:
    """The conversations, as the sessions API reads and changes them."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store
        self.models = store.models

    @trace_method(kind=SpanKind.DB, name="mongodb.create_session", attributes=_SESSIONS)
    async def create(
        self, session: MongoSessionManager, name: str | None = None, agent: str | None = None
    ) -> tuple[Session, bool]:
        """Create a session, or return the existing one with this key. The bool says whether it is new.

        Raises `SessionErased` while a session with this id is being deleted.
        """
        if found := await self._find(session.key):
            return found, False
        document = self.models.session(
            id=session.key, user_id=session.user_id, name=name, agent=agent, category=session.category
        )
        is_new = await session.create(document)
        return (document if is_new else await self.get(session.key)), is_new

    @trace_method(kind=SpanKind.DB, name="mongodb.list_sessions", attributes=_SESSIONS)
    async def list_page(
        self, user_id: str, *, limit: int, before: str | None = None, search: str | None = None
    ) -> Page[Session]:
        """Return the user's sessions, the most recently used first.

        `search` matches a part of the name or of any message. It reads the messages of the user, the most recently used
        sessions first, for SEARCH_SECONDS, and then the names, for NAMES_SECONDS.
        """
        query: dict[str, Any] = {"user_id": user_id, "erased_at": None}
        if before is not None:
            query |= Cursor.decode(before).older("updated_at", session_key(user_id, ""))
        if not search:
            return await self._sessions_page(query, limit)
        pattern = {"$regex": re.escape(search), "$options": "i"}
        keys, is_complete = await self._mentioning(query, pattern)
        found_in = {"_id": {"$in": keys}}
        open_question = {"turn.message.parts": _text_like(pattern)}
        try:
            with _for_seconds(NAMES_SECONDS):
                like = {"$and": [{"$or": [{"name": pattern}, open_question, found_in]}]}
                page = await self._sessions_page(query | like, limit)
        except TimeoutError:
            page, is_complete = await self._sessions_page(query | {"$and": [found_in]}, limit), False
        return replace(page, is_complete=is_complete)

    async def _sessions_page(self, query: dict[str, Any], limit: int) -> Page[Session]:
        found = self._store.sessions.find(query, {"turn.message": 0}).sort(_NEWEST_SESSIONS)
        return await _page(found, self.models.session, limit, _session_cursor)

    @trace_method(kind=SpanKind.DB, name="mongodb.get_session", attributes=_SESSIONS)
    async def get(self, key: str) -> Session:
        found = await self._find(key)
        if found is None:
            raise NotFound
        return found

    @trace_method(kind=SpanKind.DB, name="mongodb.rename_session", attributes=_SESSIONS)
    async def rename(self, key: str, name: str) -> Session:
        changed = await self._store.update_session({"_id": key, "erased_at": None}, {"name": name})
        return from_bson(self.models.session, changed) if changed else await self.get(key)

    @trace_method(kind=SpanKind.DB, name="mongodb.list_messages", attributes=_MESSAGES)
    async def messages_page(
        self, session: Session, *, limit: int, before: int | None = None, branch: str | None = None
    ) -> Page[PathMessage]:
        """Return whole turns in order: the newest ones of the active path, or of that to the node `branch`.

        `before`: those before the given turn. The running turn's answer is left out: its stream shows all of it.
        """
        head, key = head_of(self.models, vars(session)), session.id
        end = head.tip
        if branch is not None and (head.running is None or branch != end.node):
            found = await find_messages(self._store, key, branch, at=head.tip)
            if not found:
                raise NotFound
            end = place_of(found[-1]["_id"], found[-1])
        at = end if before is None else end.up_to(before - 1)
        path = await read_path(self._store, key, at, limit=limit + 1) if at.order > 1 else ()
        newest = [from_bson(self.models.message, each) for each in path]
        if at == head.tip:
            newest = self._with_open(session, newest)[-limit - 1 :]
        if len(newest) <= limit:
            return Page(await self._shown(key, newest), None)
        # One message more than the limit was read: its turn starts the next page.
        shown = await self._shown(key, newest)
        page = [message for message in shown if message.turn_number > newest[0].turn_number]
        return Page(page, str(newest[0].turn_number + 1))

    def _with_open(self, session: Session, path: list[Message]) -> list[Message]:
        """Add the session's open question, unless it has been moved to the messages since the session was read."""
        stored = session.turn.get("message") if session.turn is not None else None
        if stored is None or any(message.id == stored["_id"] for message in path):
            return path
        return [*path, from_bson(self.models.message, stored)]

    async def _shown(self, key: str, messages: Sequence[Message]) -> list[PathMessage]:
        """Return the messages of a path with their siblings. Each follows the one before it: its parent may be gone."""
        parents = {message.parent for message in messages}
        children = await read_children(self._store, key, *parents) if messages else {}
        befores = ["", *(message.id for message in messages)]
        siblings = [list(map(without_parts, children[each.parent])) for each in messages]
        return [
            PathMessage(each, replace(with_siblings(session_message(each), among), parent=parent))
            for each, among, parent in zip(messages, siblings, befores, strict=False)
        ]

    @trace_method(kind=SpanKind.DB, name="mongodb.list_tree", attributes=_MESSAGES)
    async def tree_page(self, session: Session, *, limit: int, after: str | None = None) -> tuple[str, Page[Message]]:
        """See `SessionManager.tree`. Returns the end of the active path, too.

        `before` of the page is the cursor of the next.
        """
        segment = _read_tree_cursor(after) if after is not None else None
        leaf = await last_node(self._store, session.id, head_of(self.models, vars(session)).leaf)
        stored = await read_tree(self._store, session.id, limit=limit + 1, after=segment)
        messages = [from_bson(self.models.message, each) for each in stored[:limit]]
        return leaf, Page(messages, tree_cursor(messages[-1]) if len(stored) > limit else None)

    @trace_method(kind=SpanKind.DB, name="mongodb.find_request", attributes=_MESSAGES)
    async def find_request(self, request_id: str) -> tuple[str, str]:
        """Return the key of the session that a request belongs to, and the id of the answer that contains it."""
        query = {"requests": request_id, **HAS_REQUESTS}
        with translated():
            found = await self._store.messages.find_one(query, {"session_id": 1, "client_message_id": 1})
        if found is None:
            raise UnknownRequest
        await self.get(found["session_id"])
        return found["session_id"], found["client_message_id"]

    @trace_method(kind=SpanKind.DB, name="mongodb.waiting_page", attributes=_MESSAGES)
    async def waiting_page(self, user_id: str | None, *, limit: int, before: str | None = None) -> Page[Message]:
        """Return the waiting answers of one user, or of all, newest first. Some may belong to deleted sessions."""
        query: dict[str, Any] = dict(WAITING)
        if user_id is not None:
            query["asker"] = user_id
        if before is not None:
            query |= Cursor.decode(before).older("created_at")
        found = self._store.messages.find(query).sort([("created_at", DESCENDING), ("_id", DESCENDING)])
        return await _page(found, self.models.message, limit, waiting_cursor)

    @trace_method(kind=SpanKind.DB, name="mongodb.unannounced", attributes=_MESSAGES)
    async def unannounced(self, before: datetime, limit: int) -> list[tuple[str, SessionMessage]]:
        """Return answers, with their sessions' keys, whose event for the webhook was not queued before a time."""
        with translated():
            query = UNANNOUNCED | {"created_at": {"$lt": before}}
            found = await self._store.messages.find(query).sort("created_at").limit(limit).to_list()
        messages = [from_bson(self.models.message, each) for each in found]
        return [(message.session_id, session_message(message)) for message in messages]

    @trace_method(kind=SpanKind.DB, name="mongodb.note_announced", attributes=_MESSAGES)
    async def note_announced(self, key: str, message_id: str, event_id: str) -> None:
        """Record the last event of an answer that was queued for the webhook."""
        answer = {"session_id": key, "client_message_id": message_id}
        with translated():
            await self._store.messages.update_one(answer, {"$set": {"announced": event_id}})

    @trace_method(kind=SpanKind.DB, name="mongodb.askers", attributes=_SESSIONS)
    async def askers(self, keys: Sequence[str]) -> dict[str, tuple[str, str | None]]:
        """Return the owner of each waiting session, by its key: the name they authenticate with, and their category."""
        waiting = {"_id": {"$in": list(keys)}, "erased_at": None, "turn.state": "waiting"}
        with translated():
            sessions = await self._store.sessions.find(waiting, {"user_id": 1, "category": 1}).to_list()
            alive = {"_id": {"$in": [session["user_id"] for session in sessions]}, "erased_at": None}
            users = await self._store.users.find(alive, {"client_id": 1}).to_list()
        names = {user["_id"]: user["client_id"] for user in users}
        return {
            each["_id"]: (names[each["user_id"]], each.get("category")) for each in sessions if each["user_id"] in names
        }

    @trace_method(kind=SpanKind.DB, name="mongodb.delete_message", attributes=_MESSAGES)
    async def delete_message(self, key: str, message_id: str) -> None:
        """Delete a message, and with it the drafts of a rebuild that contain it.

        Raises `TurnInProgress` while its turn runs.
        """

        async def work(transaction: AsyncClientSession) -> None:
            # A write, because a read would not conflict with a turn that begins or ends meanwhile.
            session = await self._store.sessions.find_one_and_update(
                {"_id": key, "erased_at": None},
                {"$set": {"summary_basis": new_id(), "rebuilt_at": None}},
                session=transaction,
            )
            if session is None:
                raise NotFound
            head = head_of(self.models, session)
            turn = head.running
            if turn is not None and message_id in (turn.id, turn.question, turn.message_id):
                raise TurnInProgress
            found = await find_messages(self._store, key, message_id, at=head.tip)
            if not found:
                raise NotFound
            message = found[-1]
            if turn is not None and turn.question in (message["_id"], message["parent"]):
                raise TurnInProgress
            await self._store.messages.delete_one({"_id": message["_id"]}, session=transaction)
            mentioning = {"session_id": key, "draft": True, "end_turn_number": {"$gte": message["turn_number"]}}
            await self._store.summaries.delete_many(mentioning, session=transaction)
            if head.turn is not None and head.turn.id == message["_id"]:  # it waits: its requests are withdrawn
                idle = {"turn": None, "due": now() if session["queue"] else None}
                await self._store.sessions.update_one(
                    {"_id": key}, {"$set": idle, "$inc": {"version": 1}}, session=transaction
                )

        await self._store.transaction(work)

    @trace_method(kind=SpanKind.DB, name="mongodb.get_summary", attributes=_SUMMARIES)
    async def latest_summary(self, session: Session) -> Summary | None:
        """Read the newest summary of a session's active path."""
        at = head_of(self.models, vars(session)).tip
        found = await read_summary(self._store, session.id, at)
        return from_bson(self.models.summary, found) if found else None

    @trace_method(kind=SpanKind.DB, name="mongodb.summary_is_current", attributes=_SUMMARIES)
    async def summary_is_current(self, session: Session, *, rebuild: bool) -> bool:
        """Whether a job would find nothing to do: every turn but the latest is summarized, and no rebuild is needed."""
        last = session.latest_turn_number - 1
        if last < 1:
            return True
        summary = await self.latest_summary(session)
        return (
            summary is not None and summary.end_turn_number >= last and (not rebuild or session.rebuilt_at is not None)
        )

    @trace_method(kind=SpanKind.DB, name="mongodb.note_summary_queued", attributes=_SESSIONS)
    async def note_summary_queued(self, key: str, *, rebuild: bool) -> bool:
        """Record that a summary job is queued. Returns False if an equivalent one is queued already.

        If the job is lost, the record expires after `QUEUED_LIFE`.
        """
        over = now() - QUEUED_LIFE
        same = ["rebuild_queued_at"] if rebuild else ["summary_queued_at", "rebuild_queued_at"]
        nothing_queued = [{"$or": [{name: None}, {name: {"$lt": over}}]} for name in same]
        noted = await self._store.update_session(
            {"_id": key, "erased_at": None, "$and": nothing_queued}, {same[0]: now()}
        )
        return noted is not None

    @trace_method(kind=SpanKind.DB, name="mongodb.note_summary_done", attributes=_SESSIONS)
    async def note_summary_done(self, key: str, *, rebuild: bool) -> None:
        """Record that no such job is queued any more."""
        done = ["rebuild_queued_at", "summary_queued_at"] if rebuild else ["summary_queued_at"]
        await self._store.update_session({"_id": key}, dict.fromkeys(done))

    async def _mentioning(self, query: dict[str, Any], pattern: dict[str, Any]) -> tuple[list[str], bool]:
        """Return the sessions of a query with a message that matches, and whether there was time to read all of them.

        A case-insensitive search reads every message.
        """
        found: list[str] = []
        try:
            with _for_seconds(SEARCH_SECONDS):
                sessions = self._store.sessions.find(query, {"_id": 1}).sort(_NEWEST_SESSIONS)
                while newest := await sessions.to_list(SEARCHED_AT_ONCE):
                    said = {"session_id": {"$in": [each["_id"] for each in newest]}, "parts": _text_like(pattern)}
                    found += await self._store.messages.distinct("session_id", said)
        except TimeoutError:
            return found, False
        return found, True

    async def _find(self, key: str) -> Session | None:
        """Read a session. Raises `SessionErased`, which is a `NotFound`, while it is being deleted."""
        with translated():
            found = await self._store.sessions.find_one({"_id": key})
        if found is not None and found.get("erased_at") is not None:
            raise SessionErased
        return from_bson(self.models.session, found) if found else None


@contextmanager
def _for_seconds(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` if MongoDB takes longer. The server ends its work in time, too."""
    try:
        with translated(), pymongo.timeout(seconds):
            yield
    except StorageUnavailable as exc:
        if isinstance(exc.__cause__, driver.PyMongoError) and exc.__cause__.timeout:
            raise TimeoutError from exc
        raise


async def _page(
    found: AsyncCursor[dict[str, Any]], model: type[Stored], limit: int, cursor: Callable[[Stored], str]
) -> Page[Stored]:
    """Read a page of a sorted list, and one item more to see whether another page follows."""
    with translated():
        stored = await found.limit(limit + 1).to_list()
    items = [from_bson(model, each) for each in stored[:limit]]
    return Page(items, cursor(items[-1]) if len(stored) > limit else None)


def _session_cursor(session: Session) -> str:
    return Cursor(session.updated_at, public_session_id(session.id)).encode()


def waiting_cursor(message: Message) -> str:
    """Return the cursor of the page of waiting answers that follows a message."""
    return Cursor(message.created_at, message.id).encode()


def tree_cursor(message: Message) -> str:
    """Return the cursor of the page of a tree that follows a message."""
    return f"{message.branch}.{message.place}"


def _read_tree_cursor(text: str) -> Segment:
    try:
        branch, place = map(int, text.split("."))
    except ValueError as exc:
        raise InvalidRequest("query.after: pass `after` of the previous page.") from exc
    return branch, place


def _text_like(pattern: dict[str, Any]) -> dict[str, Any]:
    """Return the condition on `parts` that one of them is a text, or a message that joined, and matches the pattern."""
    return {"$elemMatch": {"type": {"$in": ["text", "steering"]}, "text": pattern}}
