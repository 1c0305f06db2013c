"""`InMemorySessionManager`: a session in this process's memory, for tests and scripts.

It fulfils the whole contract of `SessionManager` and rejects what MongoDB would reject. Nothing outlives the process.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from omniagent.errors import ConfigurationError, InvalidRequest, NotFound, SessionErased, StorageRejected
from omniagent.messages import Feedback, close_open_calls
from omniagent.session.addresses import SessionAddress, SessionInfo, checked_limit
from omniagent.session.ids import public_session_id, session_key
from omniagent.session.live import Change, LiveTurn, RollingSummary, SessionHead, SessionMessage
from omniagent.session.manager import NOT_AN_ANSWER, OpenTurns, SessionManager
from omniagent.session.tree import Place, Segment, cut
from omniagent.settings import Settings

MAX_MESSAGE_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class _Session:
    user: str
    category: str | None = None
    head: SessionHead = SessionHead()
    due: datetime | None = None
    last_change: str = ""
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    messages: list[SessionMessage] = field(default_factory=list)
    """In the order of their creation."""
    summaries: list[RollingSummary] = field(default_factory=list)
    drafts: list[RollingSummary] = field(default_factory=list)

    @property
    def updated_at(self) -> datetime:
        return self.head.changed_at or self.created_at

    def mark(self) -> None:
        """Mark the session as deleted. Its turn stays: whoever deletes the session stops it."""
        self.head, self.due = replace(self.head, queue=(), is_erased=True), None

    def of_kind(self, draft: bool) -> list[RollingSummary]:
        return self.drafts if draft else self.summaries

    def apply(self, change: Change) -> None:
        self.head, self.due, self.last_change = change.after, change.due, change.id
        for answer in change.changed:
            at = next(index for index, message in enumerate(self.messages) if message.node == answer.node)
            self.messages[at] = replace(deepcopy(answer), feedback=self.messages[at].feedback)
        self.messages += [replace(deepcopy(message), feedback=None) for message in change.inserted]


class InMemoryStore:
    """Users and sessions in memory. A test may create its own."""

    def __init__(self) -> None:
        self.sessions: dict[str, _Session] = {}
        self.erased_users: dict[str, str] = {}
        """The names of users who are being deleted, by their ids."""
        self.open_turns = OpenTurns()

    async def list_sessions(
        self, user: str, *, limit: int = 20, before: SessionInfo | None = None
    ) -> Sequence[SessionInfo]:
        """See `SessionDirectory.list_sessions`."""
        found = [
            SessionInfo(
                public_session_id(key),
                each.head.name,
                each.updated_at,
                each.head.tip.turn_number,
                each.head.waiting.until if each.head.waiting is not None else None,
                each.head.agent,
            )
            for key, each in self.sessions.items()
            if each.user == user and not each.head.is_erased
        ]
        found.sort(key=_used, reverse=True)
        return [info for info in found if before is None or _used(info) < _used(before)][: checked_limit(limit)]

    async def due(self, now: datetime, limit: int) -> Sequence[SessionAddress]:
        """See `SessionDirectory.due`."""
        waiting = sorted((each.due, key) for key, each in self.sessions.items() if each.due and each.due <= now)
        addresses = [await self.address_of(key) for _, key in waiting[:limit]]
        return [address for address in addresses if address is not None]

    async def address_of(self, key: str) -> SessionAddress | None:
        """See `SessionDirectory.address_of`."""
        session = self.sessions.get(key)
        return None if session is None else SessionAddress(session.user, public_session_id(key), session.category)

    async def mark_user_erased(self, user_id: str, limit: int = 500) -> bool:
        """See `SessionDirectory.mark_user_erased`."""
        keys = await self.session_keys(user_id, limit=len(self.sessions))
        if keys:
            self.erased_users[user_id] = self.sessions[keys[0]].user
        unmarked = [self.sessions[key] for key in keys if not self.sessions[key].head.is_erased]
        for session in unmarked[:limit]:
            session.mark()
        return len(unmarked) <= limit

    async def user_is_erased(self, user_id: str) -> bool:
        """See `SessionDirectory.user_is_erased`."""
        return user_id in self.erased_users

    async def mark_idle(self, before: datetime, limit: int = 500) -> None:
        """See `SessionDirectory.mark_idle`."""
        for session in [each for each in self.sessions.values() if each.updated_at < before][:limit]:
            session.mark()

    async def marked_sessions(self, limit: int = 500) -> Sequence[SessionAddress]:
        """See `SessionDirectory.marked_sessions`. Here also those whose request has not ended."""
        marked = [(key, each) for key, each in self.sessions.items() if each.head.is_erased]
        return [SessionAddress(each.user, public_session_id(key)) for key, each in marked[:limit]]

    async def marked_users(self, limit: int = 500) -> Sequence[str]:
        """See `SessionDirectory.marked_users`. Here also those whose request has not ended."""
        return list(self.erased_users.values())[:limit]

    async def session_keys(self, user_id: str, *, limit: int = 500) -> Sequence[str]:
        """See `SessionDirectory.session_keys`."""
        return [key for key in self.sessions if key.startswith(session_key(user_id, ""))][:limit]

    async def forget_user(self, user_id: str) -> bool:
        """See `SessionDirectory.forget_user`."""
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
        session = self.store.sessions.get(self.key) if erased else self._find()
        return session.head if session else None

    async def path(self, at: Place, *, first: int = 1, limit: int | None = None) -> Sequence[SessionMessage]:
        ends = self._ends(at)
        on_path = (each for each in self._messages() if each.place.order <= ends.get(each.branch, 0))
        found = sorted((each for each in on_path if each.turn_number >= first), key=_order)
        return deepcopy(found[-limit:] if limit is not None else found)

    async def find(self, *ids: str, at: Place | None = None, anywhere: str = "") -> Sequence[SessionMessage]:
        found = [each for each in self._messages() if each.node in ids or _is_called(each, ids, at)]
        called = [each for each in self._messages() if anywhere and anywhere in (each.id, *each.steering_ids)]
        newest = sorted(called, key=lambda each: (each.id == anywhere, each.branch))[-1:]
        return deepcopy(found + [each for each in newest if each not in found])

    async def children(self, *parents: str) -> Mapping[str, Sequence[SessionMessage]]:
        found: dict[str, list[SessionMessage]] = {}
        for message in self._messages():
            if message.parent in parents:
                found.setdefault(message.parent, []).append(replace(message, parts=()))
        return found

    async def tree(self, *, limit: int, after: Place | None = None) -> Sequence[SessionMessage]:
        found = sorted((each for each in self._messages() if after is None or _row(each) > _row(after)), key=_row)
        return deepcopy(found[: max(1, limit)])

    async def end_of(self, place: Place) -> Place:
        below = [each.place for each in self._messages() if each.place.leads_from(place)]
        newest = below[-1] if below else place
        return max((each for each in below if each.branch == newest.branch), key=lambda each: each.order, default=place)

    async def write(self, change: Change) -> bool:
        session = self.store.sessions.get(self.key)
        if session is None and change.before.version == 0:
            if self.user_id in self.store.erased_users:
                raise SessionErased
            session = _Session(self.user)
        if session is None:
            return False
        if session.head.is_erased and change.before.version == 0:
            raise SessionErased
        if session.head.is_erased or session.head.version != change.before.version:
            return session.last_change == change.id
        checked = replace(
            change,
            after=replace(change.after, name=session.head.name),
            inserted=tuple(map(_checked, change.inserted)),
            changed=tuple(map(_checked, change.changed)),
        )
        session.apply(checked)
        session.category = self.category if self.category is not None else session.category
        self.store.sessions[self.key] = session
        return True

    async def busy_sessions(self) -> Sequence[tuple[str, LiveTurn | None]]:
        keys = await self.store.session_keys(self.user_id, limit=len(self.store.sessions))
        heads = [(key, self.store.sessions[key].head) for key in keys if key != self.key]
        heads = [(key, head) for key, head in heads if not head.is_erased]
        return [(key, head.turn) for key, head in heads if head.running is not None or head.queue][:100]

    async def rate(self, message_id: str, feedback: Feedback | None) -> SessionMessage:
        session = self._find()
        live = session.head.live_messages if session else ()
        message = next((m for m in (*self._messages(), *live) if message_id in (m.id, getattr(m, "node", ""))), None)
        if session is None or message is None:
            raise NotFound
        if not isinstance(message, SessionMessage) or message.role != "assistant":
            raise InvalidRequest(NOT_AN_ANSWER)
        rated = replace(message, feedback=feedback)
        session.messages[session.messages.index(message)] = rated
        return deepcopy(rated)

    async def latest_summary(self, at: Place, *, draft: bool = False) -> RollingSummary | None:
        session = self._find()
        ends = self._ends(at)
        summaries = session.of_kind(draft) if session else []
        on_path = [each for each in summaries if each.end.order <= ends.get(each.branch, 0)]
        return max(on_path, key=lambda each: each.end_turn_number, default=None)

    async def add_summary(self, summary: RollingSummary, at: Place, *, draft: bool = False) -> bool:
        session, newest = self._find(), await self.latest_summary(at, draft=draft)
        is_next = summary.start_turn_number == (newest.end_turn_number if newest else 0) + 1
        if session is None or not is_next or summary.end_turn_number < summary.start_turn_number:
            return False
        session.of_kind(draft).append(summary)
        return True

    async def publish_drafts(self, at: Place | None) -> bool:
        session = self._find()
        newest = await self.latest_summary(at, draft=True) if at is not None else None
        if session is not None and (newest is not None or at is None):
            session.summaries, session.drafts = [replace(newest, start_turn_number=1)] if newest else [], []
        return newest is not None

    async def rename(self, name: str, *, was: str | None) -> bool:
        session = self._find()
        if session is None or session.head.name != was:
            return False
        session.head = replace(session.head, name=name)
        return True

    async def erase_some(self, limit: int = 500) -> bool:
        session = self.store.sessions.get(self.key)
        if session is None or not session.head.is_erased:
            return True
        del session.messages[:limit]
        if session.messages:
            return False
        del self.store.sessions[self.key]
        return True

    def sibling(self, key: str) -> "InMemorySessionManager":
        session_id = public_session_id(key)
        return InMemorySessionManager(
            self.user, session_id, store=self.store, settings=self.settings, category=self.category
        )

    def _ends(self, at: Place) -> dict[int, int]:
        """Return the branches of the whole path to a place, each with its last order on it."""
        segments, ends = at.segments, dict[int, int]()
        while segments:
            ends |= dict(segments)
            oldest = segments[0][0]
            lineage = next((each.lineage for each in self._messages() if each.branch == oldest), ())
            segments = cut(lineage, at.order)
        return ends

    def _messages(self) -> list[SessionMessage]:
        session = self._find()
        return session.messages if session is not None else []

    def _find(self) -> _Session | None:
        session = self.store.sessions.get(self.key)
        return None if session is None or session.head.is_erased else session


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


def _order(message: SessionMessage) -> int:
    return message.place.order


def _row(at: SessionMessage | Place) -> Segment:
    """Where a message comes in the list of a whole tree."""
    place = at if isinstance(at, Place) else at.place
    return place.branch, place.order


def _is_called(message: SessionMessage, ids: Sequence[str], at: Place | None) -> bool:
    """Whether clients call a message so, or one that joined it, on the path to a place."""
    if at is None or not at.leads_from(message.place):
        return False
    return message.id in ids or not set(message.steering_ids).isdisjoint(ids)
