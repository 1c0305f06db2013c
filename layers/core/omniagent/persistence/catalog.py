"""The reads and writes of the sessions API.

Sessions are addressed by their key, which starts with the owner's id: no query here can reach another user's session.
It gets the same answer as a session that does not exist, and so does one that is being deleted. Lists continue from a
cursor, never by skipping.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar

import pymongo
from pymongo import DESCENDING
from pymongo import errors as driver
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.cursor import AsyncCursor

from omniagent.errors import InvalidRequest, NotFound, SessionErased, StorageUnavailable, TurnInProgress, UnknownRequest
from omniagent.persistence.documents import HAS_REQUESTS, IS_DUE, UNANNOUNCED, WAITING, Session
from omniagent.persistence.driver_errors import on_mongodb, translated
from omniagent.persistence.mongo_history import MongoHistory
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import NEWEST_SESSIONS, WITHOUT_MESSAGES, ConversationStore, Cursor
from omniagent.persistence.stored_session import from_bson, head_of, message_of, now
from omniagent.session.ids import new_id, public_session_id, session_key
from omniagent.session.live import Place, SessionMessage
from omniagent.session.manager import SessionAddress
from omniagent.session.window import RollingSummary

Item = TypeVar("Item")
SEARCH_SECONDS, NAMES_SECONDS, SNIPPET_SECONDS = 1.0, 0.5, 0.5
WORDS_AROUND = 40
"""Characters before and after a match."""
SEARCHED_AT_ONCE = 20
"""Sessions. What was found in earlier ones is returned if the time is over."""
QUEUED_LIFE = timedelta(hours=1)
"""Longer than the queue keeps redelivering a job that fails."""
_LIVE = ("state", "since", "attempt", "until")
_TREE_CURSOR = re.compile(r"(\d{1,9})\.(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list. `before` is the cursor of the next page, None on the last."""

    items: list[Item]
    before: str | None
    is_complete: bool = True
    """False if a search ran out of time: other items may match, too."""


class Catalog:
    """The conversations, as the sessions API reads and changes them."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store
        self.models = store.models

    @on_mongodb("sessions", "create_session")
    async def create(
        self, session: MongoSessionManager, name: str | None = None, agent: str | None = None
    ) -> tuple[Session, bool]:
        """Create a session, or return the existing one with this key. The bool says whether it is new.

        Raises `SessionErased` while a session with this id is being deleted.
        """
        is_new = await session.create(name=name, agent=agent)
        return await self.get(session.key), is_new

    @on_mongodb("sessions", "list_sessions")
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
        found = self._store.sessions.find(query, WITHOUT_MESSAGES).sort(NEWEST_SESSIONS)
        read = partial(from_bson, self.models.session)
        return await _page(found, read, limit, lambda each: Cursor(each.updated_at, public_session_id(each.id)))

    @on_mongodb("sessions", "get_session")
    async def get(self, key: str) -> Session:
        """Read a session. Raises `SessionErased`, which is a `NotFound`, while it is being deleted."""
        found = await self._store.sessions.find_one({"_id": key})
        if found is None:
            raise NotFound
        if found.get("erased_at") is not None:
            raise SessionErased
        return from_bson(self.models.session, found)

    @on_mongodb("sessions", "rename_session")
    async def rename(self, key: str, name: str) -> Session:
        changed = await self._store.update_session({"_id": key, "erased_at": None}, {"name": name})
        return from_bson(self.models.session, changed) if changed else await self.get(key)

    async def messages_page(
        self, session: Session, *, limit: int, before: int | None = None, branch: str | None = None
    ) -> Page[SessionMessage]:
        """Return whole turns in order: the newest ones of the active path, or of that to the node `branch`.

        `before`: those before the given turn. The running turn's answer is left out: its stream shows all of it.
        """
        history = MongoHistory(self._store, session.id)
        newest = await history.shown(head_of(vars(session)), limit=limit + 1, before=before, branch=branch)
        if len(newest) <= limit:
            return Page(newest, None)
        # One message more than the limit was read: its turn starts the next page.
        page = [message for message in newest if message.turn_number > newest[0].turn_number]
        return Page(page, str(newest[0].turn_number + 1))

    async def tree_page(
        self, session: Session, *, limit: int, after: str | None = None
    ) -> tuple[str, Page[SessionMessage]]:
        """See `SessionManager.tree`. Returns the end of the active path, too.

        `before` of the page is the cursor of the next.
        """
        history = MongoHistory(self._store, session.id)
        leaf = await history.last_node(head_of(vars(session)).leaf)
        place = _read_tree_cursor(after) if after is not None else None
        messages = list(await history.tree(limit=limit + 1, after=place))
        return leaf, Page(messages[:limit], tree_cursor(messages[limit - 1]) if len(messages) > limit else None)

    @on_mongodb("messages")
    async def find_request(self, request_id: str) -> tuple[str, str]:
        """Return the key of the session that a request belongs to, and the id of the answer that contains it."""
        query = {"requests": request_id, **HAS_REQUESTS}
        found = await self._store.messages.find_one(query, {"session_id": 1, "client_message_id": 1})
        if found is None:
            raise UnknownRequest
        await self.get(found["session_id"])
        return found["session_id"], found["client_message_id"]

    @on_mongodb("messages")
    async def waiting_page(
        self, user_id: str | None, *, limit: int, before: str | None = None
    ) -> Page[tuple[str, SessionMessage]]:
        """Return the waiting answers of one user, or of all, newest first, with the keys of their sessions.

        Some may belong to deleted sessions.
        """
        query: dict[str, Any] = dict(WAITING)
        if user_id is not None:
            query["asker"] = user_id
        if before is not None:
            query |= Cursor.decode(before).older("created_at")
        found = self._store.messages.find(query).sort([("created_at", DESCENDING), ("_id", DESCENDING)])
        return await _page(found, _keyed, limit, lambda each: waiting_cursor(each[1]))

    @on_mongodb("messages")
    async def unannounced(self, before: datetime, limit: int) -> list[tuple[str, SessionMessage]]:
        """Return answers, with their sessions' keys, whose event for the webhook was not queued before a time."""
        query = UNANNOUNCED | {"created_at": {"$lt": before}}
        found = self._store.messages.find(query).sort("created_at").limit(limit)
        return [_keyed(each) async for each in found]

    @on_mongodb("messages")
    async def note_announced(self, key: str, message_id: str, event_id: str) -> None:
        """Record the last event of an answer that was queued for the webhook."""
        answer = {"session_id": key, "client_message_id": message_id}
        await self._store.messages.update_one(answer, {"$set": {"announced": event_id}})

    @on_mongodb("sessions")
    async def live_turns(self, limit: int) -> list[dict[str, Any]]:
        """Return the turns of up to `limit` sessions that run or wait, and their messages in line, without their text.

        For the operator: of all users, the longest due first. The sweep's index has them all: whatever runs, waits or
        is in line has a time at which the sweep looks at it.
        """
        shown = ["category", "queue.id", "queue.is_stopped", *(f"turn.{name}" for name in ("id", *_LIVE))]
        found = self._store.sessions.find({"due": IS_DUE, "erased_at": None}, shown).sort("due").limit(limit)
        turns = []
        for session in await found.to_list():
            info = {"session_id": session["_id"], "category": session.get("category")}
            if turn := session.get("turn"):
                turns.append(info | {"message_id": turn["id"], **{name: turn[name] for name in _LIVE}})
            queued = [message["id"] for message in session.get("queue") or () if not message["is_stopped"]]
            turns += [
                info | dict.fromkeys(_LIVE) | {"message_id": each, "state": "queued", "attempt": 0} for each in queued
            ]
        return turns

    @on_mongodb("sessions")
    async def askers(self, keys: Sequence[str]) -> dict[str, SessionAddress]:
        """Return the waiting sessions among these, by their keys."""
        waiting = {"_id": {"$in": list(keys)}, "erased_at": None, "turn.state": "waiting"}
        return {each.key: each for each in await self._store.addresses(waiting)}

    @on_mongodb("messages")
    async def delete_message(self, key: str, message_id: str) -> None:
        """Delete a message, and with it the drafts of a rebuild that contain it.

        Raises `TurnInProgress` while its turn runs or waits.
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
            head = head_of(session)
            turn = head.running
            if turn is not None and message_id in (turn.id, turn.question, turn.message_id):
                raise TurnInProgress
            message = await MongoHistory(self._store, key).named(head, message_id)
            if turn is not None and turn.question in (message.node, message.parent):
                raise TurnInProgress
            if head.waiting is not None and head.waiting.id == message.node:
                raise TurnInProgress  # it is closed first
            await self._store.messages.delete_one({"_id": message.node}, session=transaction)
            mentioning = {"session_id": key, "draft": True, "end_turn_number": {"$gte": message.turn_number}}
            await self._store.summaries.delete_many(mentioning, session=transaction)

        await self._store.mongo.transaction(work)

    async def latest_summary(self, session: Session) -> RollingSummary | None:
        """Read the newest summary of a session's active path."""
        return await MongoHistory(self._store, session.id).latest_summary(head_of(vars(session)).tip)

    async def summary_is_current(self, session: Session, *, rebuild: bool) -> bool:
        """Whether a job would find nothing to do: every turn but the latest is summarized, and no rebuild is needed."""
        last = session.latest_turn_number - 1
        if last < 1:
            return True
        summary = await self.latest_summary(session)
        return (
            summary is not None and summary.end_turn_number >= last and (not rebuild or session.rebuilt_at is not None)
        )

    @on_mongodb("sessions")
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

    @on_mongodb("sessions")
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
                sessions = self._store.sessions.find(query, {"_id": 1}).sort(NEWEST_SESSIONS)
                while newest := await sessions.to_list(SEARCHED_AT_ONCE):
                    said = {"session_id": {"$in": [each["_id"] for each in newest]}, "parts": _text_like(pattern)}
                    found += await self._store.messages.distinct("session_id", said)
        except TimeoutError:
            return found, False
        return found, True

    async def snippets(self, keys: Sequence[str], search: str) -> dict[str, str]:
        """Return a passage of each session whose messages contain the text. Without enough time, of none."""
        like = {"$regex": re.escape(search), "$options": "i"}
        pipeline: list[dict[str, Any]] = [
            {"$match": {"session_id": {"$in": list(keys)}, "parts": {"$elemMatch": {"type": "text", "text": like}}}},
            {"$group": {"_id": "$session_id", "parts": {"$first": "$parts"}}},
        ]
        try:
            with _for_seconds(SNIPPET_SECONDS):
                found = await (await self._store.messages.aggregate(pipeline)).to_list()
        except TimeoutError:
            return {}
        return {each["_id"]: _passage(each["parts"], search) for each in found}


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
    found: AsyncCursor[dict[str, Any]],
    read: Callable[[Mapping[str, Any]], Item],
    limit: int,
    cursor: Callable[[Item], Cursor],
) -> Page[Item]:
    """Read a page of a sorted list, and one item more to see whether another page follows."""
    stored = await found.limit(limit + 1).to_list()
    items = [read(each) for each in stored[:limit]]
    return Page(items, cursor(items[-1]).encode() if len(stored) > limit else None)


def _keyed(stored: Mapping[str, Any]) -> tuple[str, SessionMessage]:
    return stored["session_id"], message_of(stored)


def waiting_cursor(message: SessionMessage) -> Cursor:
    """Return the cursor of the page of waiting answers that follows a message."""
    return Cursor(message.created_at, message.node)


def tree_cursor(message: SessionMessage) -> str:
    """Return the cursor of the page of a tree that follows a message."""
    return f"{message.branch}.{message.place.order}"


def _read_tree_cursor(text: str) -> Place:
    if (match := _TREE_CURSOR.fullmatch(text)) is None:
        raise InvalidRequest("query.after: pass `after` of the previous page.")
    return Place(order=int(match[2]), branch=int(match[1]))


def _text_like(pattern: dict[str, Any]) -> dict[str, Any]:
    """Return the condition on `parts` that one of them is a text, or a message that joined, and matches the pattern."""
    return {"$elemMatch": {"type": {"$in": ["text", "steering"]}, "text": pattern}}


def _passage(parts: Sequence[dict[str, Any]], search: str) -> str:
    pattern = re.compile(re.escape(search), re.IGNORECASE)
    texts = [part["text"] for part in parts if part["type"] == "text"]
    text, match = next(((text, match) for text in texts if (match := pattern.search(text))), (texts[0], None))
    if match is None:  # MongoDB and Python fold some letters differently
        return ""
    start, end = max(0, match.start() - WORDS_AROUND), match.end() + WORDS_AROUND
    passage = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{passage}{'…' if end < len(text) else ''}"
