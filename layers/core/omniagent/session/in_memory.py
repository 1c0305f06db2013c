"""`InMemorySessionManager`: a session in this process's memory, for tests and scripts.

It fulfils the whole contract of `SessionManager` and rejects what MongoDB would reject. Nothing outlives the process.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from omniagent.errors import ConfigurationError, NotFound, SessionErased, StorageRejected
from omniagent.messages import Feedback, close_open_calls
from omniagent.session.ids import session_key
from omniagent.session.live import Change, LiveTurn, Place, SessionHead, SessionMessage, cut
from omniagent.session.manager import (
    OpenTurns,
    SessionAddress,
    SessionDirectory,
    SessionInfo,
    SessionManager,
    checked_limit,
)
from omniagent.session.window import RollingSummary
from omniagent.settings import Settings

MAX_MESSAGE_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class _Session:
    address: SessionAddress
    head: SessionHead = SessionHead()
    due: datetime | None = None
    last_change: str = ""
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    messages: list[SessionMessage] = field(default_factory=list)
    """In the order of their creation."""
    summaries: dict[bool, list[RollingSummary]] = field(default_factory=lambda: {False: [], True: []})
    """Under True, the drafts of a rebuild."""

    @property
    def updated_at(self) -> datetime:
        return self.head.changed_at or self.created_at

    def mark(self) -> None:
        """Mark the session as deleted. Its turn stays: whoever deletes the session stops it."""
        self.head, self.due = replace(self.head, queue=(), is_erased=True), None

    def apply(self, change: Change) -> None:
        self.head, self.due, self.last_change = change.after, change.due, change.id
        for answer in change.changed:
            at = next(index for index, message in enumerate(self.messages) if message.node == answer.node)
            self.messages[at] = replace(deepcopy(answer), feedback=self.messages[at].feedback)
        self.messages += [replace(deepcopy(message), feedback=None) for message in change.inserted]


class InMemoryStore(SessionDirectory):
    """Users and sessions in memory. A test may create its own."""

    def __init__(self) -> None:
        self.sessions: dict[str, _Session] = {}
        self.erased_users: dict[str, str] = {}
        """The names of users who are being deleted, by their ids."""
        self.open_turns = OpenTurns()

    async def list_sessions(
        self, user: str, *, limit: int = 20, before: SessionInfo | None = None
    ) -> Sequence[SessionInfo]:
        found = [
            SessionInfo.of(key, each.head, each.updated_at)
            for key, each in self.sessions.items()
            if each.address.user == user and not each.head.is_erased
        ]
        found.sort(key=_used, reverse=True)
        return [info for info in found if before is None or _used(info) < _used(before)][: checked_limit(limit)]

    async def due(self, now: datetime, limit: int) -> Sequence[SessionAddress]:
        found = sorted((each.due, key) for key, each in self.sessions.items() if each.due and each.due <= now)
        return [self.sessions[key].address for _, key in found[:limit]]

    async def address_of(self, key: str) -> SessionAddress | None:
        return self.sessions[key].address if key in self.sessions else None

    async def mark_user_erased(self, user_id: str, limit: int = 500) -> bool:
        keys = await self.session_keys(user_id, limit=len(self.sessions))
        if keys:
            self.erased_users[user_id] = self.sessions[keys[0]].address.user
        unmarked = [self.sessions[key] for key in keys if not self.sessions[key].head.is_erased]
        for session in unmarked[:limit]:
            session.mark()
        return len(unmarked) <= limit

    async def user_is_erased(self, user_id: str) -> bool:
        return user_id in self.erased_users

    async def mark_idle(self, before: datetime, limit: int = 500) -> None:
        for session in [each for each in self.sessions.values() if each.updated_at < before][:limit]:
            session.mark()

    async def marked_sessions(self, limit: int = 500) -> Sequence[SessionAddress]:
        # Here and below also those whose request has not ended.
        return [each.address for each in self.sessions.values() if each.head.is_erased][:limit]

    async def marked_users(self, limit: int = 500) -> Sequence[str]:
        return list(self.erased_users.values())[:limit]

    async def session_keys(self, user_id: str, *, limit: int = 500) -> Sequence[str]:
        return [key for key in self.sessions if key.startswith(session_key(user_id, ""))][:limit]

    async def erase_some(self, key: str, limit: int = 500) -> bool:
        session = self.sessions.get(key)
        if session is None or not session.head.is_erased:
            return True
        del session.messages[:limit]
        if session.messages:
            return False
        del self.sessions[key]
        return True

    async def forget_user(self, user_id: str) -> bool:
        if await self.session_keys(user_id, limit=1):
            return False
        self.erased_users.pop(user_id, None)
        return True


def _used(info: SessionInfo) -> tuple[datetime, str]:
    return info.updated_at, info.session_id


DEFAULT_STORE = InMemoryStore()


class InMemorySessionManager(SessionManager):
    """Reads and writes one session of an `InMemoryStore`, by default the process's own.

    No method yields to the event loop between a check and its write, so each is as atomic as a transaction.
    """

    store: InMemoryStore

    def __init__(
        self,
        user: str,
        session_id: str | None = None,
        *,
        store: InMemoryStore | None = None,
        settings: Settings | None = None,
        category: str | None = None,
    ) -> None:
        if not isinstance(store, InMemoryStore | None):
            raise ConfigurationError(f"the store is {store!r:.100}: pass InMemoryStore(), or None")
        super().__init__(user, session_id, settings=settings, category=category)
        self.store = store or DEFAULT_STORE
        self.open_turns = self.store.open_turns

    async def head(self, *, erased: bool = False) -> SessionHead | None:
        head = self.store.sessions[self.key].head if self.key in self.store.sessions else None
        return head if erased or not (head and head.is_erased) else None

    async def path(self, at: Place, *, first: int = 1, limit: int | None = None) -> Sequence[SessionMessage]:
        ends = self._ends(at)
        on_path = (each for each in self._session.messages if each.place.order <= ends.get(each.branch, 0))
        found = sorted((each for each in on_path if each.turn_number >= first), key=lambda each: each.place.order)
        return deepcopy(found[-limit:] if limit is not None else found)

    async def find(self, *ids: str, at: Place | None = None, anywhere: str = "") -> Sequence[SessionMessage]:
        called = [(each, {each.id, *each.steering_ids}) for each in self._session.messages]
        on_path = [each.node for each, names in called if at and at.leads_from(each.place) and names & {*ids}]
        found = [each for each, _ in called if each.node in (*ids, *on_path)]
        anywhere_called = [each for each, names in called if anywhere and anywhere in names]
        newest = sorted(anywhere_called, key=lambda each: (each.id == anywhere, each.branch))[-1:]
        return deepcopy(found + [each for each in newest if each not in found])

    async def children(self, *parents: str) -> Mapping[str, Sequence[SessionMessage]]:
        messages = [replace(each, parts=()) for each in self._session.messages if each.parent in parents]
        return {parent: [each for each in messages if each.parent == parent] for parent in parents}

    async def tree(self, *, limit: int, after: Place | None = None) -> Sequence[SessionMessage]:
        rows = {(each.branch, each.place.order): each for each in self._session.messages}
        found = [rows[row] for row in sorted(rows) if after is None or row > (after.branch, after.order)]
        return deepcopy(found[: max(1, limit)])

    async def end_of(self, place: Place) -> Place:
        below = [each.place for each in self._session.messages if each.place.leads_from(place)]
        newest = below[-1] if below else place
        return max((each for each in below if each.branch == newest.branch), key=lambda each: each.order, default=place)

    async def write(self, change: Change) -> bool:
        session = self.store.sessions.get(self.key)
        is_first = change.before.version == 0
        if is_first and (session.head.is_erased if session else self.user_id in self.store.erased_users):
            raise SessionErased
        session = session or _Session(SessionAddress(self.user, self.session_id))
        if session.head.is_erased or session.head.version != change.before.version:
            return session.last_change == change.id
        checked = replace(
            change,
            after=replace(change.after, name=session.head.name),
            inserted=tuple(map(_checked, change.inserted)),
            changed=tuple(map(_checked, change.changed)),
        )
        session.apply(checked)
        if self.category is not None:
            session.address = replace(session.address, category=self.category)
        self.store.sessions[self.key] = session
        return True

    async def busy_sessions(self) -> Sequence[tuple[str, LiveTurn | None]]:
        keys = await self.store.session_keys(self.user_id, limit=len(self.store.sessions))
        heads = [(key, self.store.sessions[key].head) for key in keys if key != self.key]
        heads = [(key, head) for key, head in heads if not head.is_erased]
        return [(key, head.turn) for key, head in heads if head.running is not None or head.queue][:100]

    async def set_feedback(self, node: str, feedback: Feedback | None) -> SessionMessage:
        messages = self._session.messages
        for at, message in enumerate(messages):
            if message.node == node:
                messages[at] = replace(message, feedback=feedback)
                return deepcopy(messages[at])
        raise NotFound

    async def latest_summary(self, at: Place, *, draft: bool = False) -> RollingSummary | None:
        ends = self._ends(at)
        summaries = self._session.summaries[draft]
        on_path = [each for each in summaries if 2 * each.end_turn_number < ends.get(each.branch, 0)]
        return max(on_path, key=lambda each: each.end_turn_number, default=None)

    async def add_summary(self, summary: RollingSummary, at: Place, *, draft: bool = False) -> bool:
        session, newest = self._session, await self.latest_summary(at, draft=draft)
        is_next = summary.start_turn_number == (newest.end_turn_number if newest else 0) + 1
        if not session.head.version or not is_next or summary.end_turn_number < summary.start_turn_number:
            return False
        session.summaries[draft].append(summary)
        return True

    async def publish_drafts(self, at: Place | None) -> bool:
        newest = await self.latest_summary(at, draft=True) if at is not None else None
        if newest is not None or at is None:
            self._session.summaries = {False: [replace(newest, start_turn_number=1)] if newest else [], True: []}
        return newest is not None

    async def rename(self, name: str, *, was: str | None) -> bool:
        session = self._session
        if not session.head.version or session.head.name != was:
            return False
        session.head = replace(session.head, name=name)
        return True

    def _ends(self, at: Place) -> dict[int, int]:
        """Return the branches of the whole path to a place, each with its last order on it."""
        segments, ends = at.segments, dict[int, int]()
        while segments:
            ends |= dict(segments)
            oldest = segments[0][0]
            lineage = next((each.lineage for each in self._session.messages if each.branch == oldest), ())
            segments = cut(lineage, at.order)
        return ends

    @property
    def _session(self) -> _Session:
        """The session, or an empty one that nobody keeps."""
        session = self.store.sessions.get(self.key)
        is_visible = session is not None and not session.head.is_erased
        return session if session is not None and is_visible else _Session(SessionAddress(self.user, self.session_id))


def _checked(answer: SessionMessage) -> SessionMessage:
    """Reject what does not fit into one MongoDB document. Close open calls, except the requests of a waiting answer."""
    parts = close_open_calls(answer.parts, waiting=answer.status == "waiting")
    try:
        size = sum(len(json.dumps(part.model_dump(), default=str)) for part in parts)
    except (TypeError, ValueError, RecursionError) as exc:
        raise StorageRejected(f"not JSON: {type(exc).__name__}: {exc}") from exc
    if size > MAX_MESSAGE_BYTES:
        raise StorageRejected("the answer is larger than a document may be")
    return replace(answer, parts=parts)
