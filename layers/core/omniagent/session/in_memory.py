"""`InMemorySessionManager`: a session in this process's memory, for tests and scripts.

It fulfils the whole contract of `SessionManager` and rejects what MongoDB would reject. Nothing outlives the process.
"""

import json
from collections.abc import AsyncIterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from omniagent.errors import (
    ConfigurationError,
    InvalidRequest,
    NotFound,
    SessionErased,
    StorageConflict,
    StorageRejected,
    TurnLost,
)
from omniagent.messages import Feedback, close_open_calls
from omniagent.session.addresses import SessionAddress, SessionInfo
from omniagent.session.manager import (
    NOT_AN_ANSWER,
    OpenTurns,
    SessionHead,
    SessionManager,
    SessionMessage,
    SessionState,
    TurnStart,
    public_session_id,
    session_of_slot,
    slot_of,
    turns_of,
)
from omniagent.session.summary_store import TURNS_PER_READ, RollingSummary
from omniagent.session.window import PastTurn
from omniagent.settings import Settings

MAX_MESSAGE_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class _User:
    category: str | None = None
    running: list[str] = field(default_factory=list)
    is_erased: bool = False


@dataclass(slots=True)
class _Session:
    user: str
    head: SessionHead = SessionHead()
    is_erased: bool = False
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    messages: list[SessionMessage] = field(default_factory=list)
    """In order: each turn's question, then its answer."""
    summaries: list[RollingSummary] = field(default_factory=list)
    drafts: list[RollingSummary] = field(default_factory=list)

    def message(self, turn_number: int, role: str) -> SessionMessage | None:
        return next((m for m in self.messages if (m.turn_number, m.role) == (turn_number, role)), None)

    def by_id(self, message_id: str | None) -> SessionMessage | None:
        return next((m for m in self.messages if m.id == message_id), None)

    def holding(self, message_id: str | None) -> SessionMessage | None:
        """Return the message with this id, or the answer that it joined."""
        return next((m for m in self.messages if message_id == m.id or message_id in m.steering_ids), None)

    def of_kind(self, draft: bool) -> list[RollingSummary]:
        return self.drafts if draft else self.summaries


class InMemoryStore:
    """Users and sessions in memory. A test may create its own."""

    outlives_process = False

    def __init__(self) -> None:
        self.users: dict[str, _User] = {}
        self.sessions: dict[str, _Session] = {}
        self.open_turns = OpenTurns()

    async def list_sessions(
        self, user: str, *, limit: int = 20, before: SessionInfo | None = None
    ) -> Sequence[SessionInfo]:
        """See `SessionDirectory.list_sessions`."""
        found = [
            SessionInfo(
                public_session_id(key),
                each.head.name,
                each.head.changed_at or each.created_at,
                each.head.latest_turn_number,
                each.head.waiting_until,
            )
            for key, each in self.sessions.items()
            if each.user == user and not each.is_erased
        ]
        found.sort(key=_used, reverse=True)
        return [info for info in found if before is None or _used(info) < _used(before)][:limit]

    async def unfinished(self, before: datetime) -> AsyncIterator[Sequence[SessionAddress]]:
        """See `SessionDirectory.unfinished`."""
        for key, session in list(self.sessions.items()):
            head, address = session.head, await self.address_of(key)
            if address is not None and head.active_turn_id and (head.changed_at is None or head.changed_at < before):
                yield [address]

    async def expired(self, limit: int) -> Sequence[SessionAddress]:
        """See `SessionDirectory.expired`."""
        now = SessionManager.now()
        waiting = {key: each.head for key, each in self.sessions.items() if not each.is_erased}
        over = sorted((head.waiting_until or now, key) for key, head in waiting.items() if head.has_expired(now))
        addresses = [await self.address_of(key) for _, key in over[:limit]]
        return [address for address in addresses if address is not None]

    async def address_of(self, key: str) -> SessionAddress | None:
        """See `SessionDirectory.address_of`."""
        session, user = self.sessions.get(key), self.users.get(key.partition(":")[0])
        if session is None:
            return None
        return SessionAddress(session.user, public_session_id(key), user.category if user is not None else None)


def _used(info: SessionInfo) -> tuple[datetime, str]:
    return info.updated_at, info.session_id


DEFAULT_STORE = InMemoryStore()


class InMemorySessionManager(SessionManager):
    """Reads and writes one session of an `InMemoryStore`, by default the process's own.

    No method yields to the event loop between a check and its write, so each is as atomic as a transaction.
    """

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

    async def head(self) -> SessionHead | None:
        session = self._find()
        return session.head if session else None

    async def create(self) -> None:
        user = self.store.users.setdefault(self.user_id, _User())
        session = self.store.sessions.setdefault(self.key, _Session(self.user))
        if user.is_erased or session.is_erased:
            raise SessionErased
        user.category = self.category if self.category is not None else user.category

    async def load(self, message_id: str | None = None) -> SessionState:
        session = self._find()
        if session is None:
            return SessionState()
        turns = self.settings.context_max_turns + 1
        latest = session.head.latest_turn_number
        return SessionState(
            head=session.head,
            summary=_newest(session.summaries),
            turns=turns_of(deepcopy(session.messages[-2 * turns :])),
            earlier=deepcopy(session.holding(message_id)) if message_id is not None else None,
            question=deepcopy(session.message(latest, "user")),
            answer=deepcopy(session.message(latest, "assistant")),
        )

    async def find(self, message_id: str) -> SessionMessage | None:
        session = self._find()
        return deepcopy(session.holding(message_id)) if session else None

    async def messages(self, first: int, last: int) -> Sequence[SessionMessage]:
        session = self._find() or _Session(self.user)
        return deepcopy([message for message in session.messages if first <= message.turn_number <= last])

    async def admit(self, limit: int, turn_id: str) -> Sequence[str]:
        user = self.store.users.setdefault(self.user_id, _User())
        if user.is_erased:
            raise SessionErased
        if self.category is not None:
            user.category = self.category
        others = [slot for slot in user.running if session_of_slot(slot) != self.key]
        if len(others) >= limit:
            return list(user.running)
        user.running = [*others, slot_of(self.key, turn_id)]
        return ()

    async def withdraw(self, *slots: str) -> None:
        user = self.store.users.get(self.user_id)
        if user is not None:
            user.running = [slot for slot in user.running if slot not in slots]

    async def begin_turn(self, start: TurnStart) -> None:
        session = self.store.sessions.get(self.key) or _Session(self.user)
        if session.is_erased or await self.user_is_erased():
            raise SessionErased
        if session.head.active_turn_id == start.turn_id and start.attempt >= session.head.attempt:
            session.head = replace(session.head, attempt=start.attempt)
            return
        if start.attempt:
            raise StorageConflict(f"turn {start.turn_id} cannot be continued: the session has moved on")
        before = start.turn_number if start.again else start.turn_number - 1
        if session.head.active_turn_id is not None or session.head.latest_turn_number != before or before < 0:
            raise StorageConflict(f"turn {start.turn_number} cannot begin: the session has moved on")
        if start.again and self.key not in self.store.sessions:
            raise StorageConflict(f"turn {start.turn_number} cannot be answered again: there is no such session")
        if start.waited is not None:
            self._change_waiting(session, start.waited, start.seen_turn_id)
        if not start.again:
            self._insert(session, SessionMessage(start.message_id, "user", start.turn_number, start.parts))
        session.head = replace(
            session.head,
            latest_turn_number=start.turn_number,
            active_turn_id=start.turn_id,
            waiting_until=None,
            changed_at=datetime.now(UTC),
            latest_turn_id=start.turn_id,
            attempt=0,
        )
        self.store.sessions[self.key] = session

    async def finish_turn(self, answer: SessionMessage, *, attempt: int = 0) -> SessionMessage:
        answer = _checked(answer)
        session = self.store.sessions.get(self.key) or _Session(self.user)
        if session.head.active_turn_id == answer.fence and session.head.attempt == attempt:
            return deepcopy(self._close(session, answer))
        is_latest = session.head.has_ended(answer.fence)
        is_taken_over = session.head.active_turn_id == answer.fence
        stored = session.message(answer.turn_number, "assistant") if is_latest else session.by_id(answer.id)
        if stored is None or session.is_erased or is_taken_over:
            raise TurnLost(f"turn {answer.id} no longer holds its session")
        is_cut_short = stored.status == "interrupted" and answer.status != "interrupted"
        if is_latest and (stored.id != answer.id or is_cut_short):
            late = self._put(session, answer)
            session.head = replace(session.head, waiting_until=late.waiting_until)
            return deepcopy(late)
        if is_cut_short or (is_latest and session.head.attempt != attempt):
            raise TurnLost(f"turn {answer.id} no longer holds its session")
        return deepcopy(stored)

    async def repair_turn(self, answer: SessionMessage) -> SessionMessage | None:
        session = self._find()
        if session is None or session.head.active_turn_id != answer.fence:
            return None
        answer = replace(_checked(answer), turn_number=session.head.latest_turn_number)
        return deepcopy(self._close(session, answer))

    async def change_waiting(self, answer: SessionMessage, *, seen_turn_id: str | None) -> None:
        session = self._find()
        if session is None or session.head.active_turn_id is not None:
            raise StorageConflict(f"answer {answer.id} does not wait any more")
        if session.head.latest_turn_id == answer.turn_id:
            return
        self._change_waiting(session, answer, seen_turn_id)
        session.head = replace(session.head, latest_turn_id=answer.turn_id, waiting_until=answer.waiting_until)

    async def rate(self, message_id: str, feedback: Feedback | None) -> SessionMessage:
        session = self._find()
        message = session.by_id(message_id) if session else None
        if session is None or message is None:
            raise NotFound
        if message.role != "assistant":
            raise InvalidRequest(NOT_AN_ANSWER)
        rated = replace(message, feedback=feedback)
        session.messages[session.messages.index(message)] = rated
        return deepcopy(rated)

    async def past_turns(self, first: int, last: int) -> AsyncIterator[Sequence[PastTurn]]:
        for start in range(first, last + 1, TURNS_PER_READ):
            if messages := await self.messages(start, min(start + TURNS_PER_READ - 1, last)):
                yield turns_of(messages)

    async def latest_summary(self, *, draft: bool = False) -> RollingSummary | None:
        session = self._find()
        return _newest(session.of_kind(draft)) if session else None

    async def add_summary(self, summary: RollingSummary, *, draft: bool = False) -> bool:
        session = self._find()
        if session is None:
            return False
        if not summary.start_turn_number <= summary.end_turn_number < session.head.latest_turn_number:
            return False
        summaries = session.of_kind(draft)
        newest = _newest(summaries)
        if summary.start_turn_number != (newest.end_turn_number if newest else 0) + 1:
            return False
        summaries.append(summary)
        return True

    async def publish_draft(self) -> bool:
        session = self._find()
        newest = _newest(session.drafts) if session else None
        if session is None or newest is None:
            return False
        session.summaries, session.drafts = [replace(newest, start_turn_number=1)], []
        return True

    async def drop_summaries(self) -> None:
        if session := self._find():
            session.summaries, session.drafts = [], []

    async def rename(self, name: str, *, was: str | None) -> bool:
        session = self._find()
        if session is None or session.head.name != was:
            return False
        session.head = replace(session.head, name=name)
        return True

    async def mark_erased(self) -> bool:
        session = self.store.sessions.get(self.key)
        if session is None:
            return False
        session.is_erased = True
        session.head = replace(session.head, active_turn_id=None)
        return True

    async def erase_some(self, limit: int = 500) -> bool:
        session = self.store.sessions.get(self.key)
        if session is None or not session.is_erased:
            return True
        del session.messages[:limit]
        if session.messages:
            return False
        del self.store.sessions[self.key]
        return True

    async def mark_user_erased(self, limit: int = 500) -> bool:
        user = self.store.users.get(self.user_id)
        if user is not None:
            user.is_erased = True
        sessions = await self.sessions_of_user(len(self.store.sessions))
        unmarked = [session for session in sessions if await session.head() is not None]
        for session in unmarked[:limit]:
            await session.mark_erased()
        return len(unmarked) <= limit

    async def user_is_erased(self) -> bool:
        user = self.store.users.get(self.user_id)
        return user is not None and user.is_erased

    async def sessions_of_user(
        self, limit: int = 500, *, before: datetime | None = None
    ) -> "Sequence[InMemorySessionManager]":
        keys = [
            key
            for key, session in self.store.sessions.items()
            if key.startswith(f"{self.user_id}:") and (before is None or session.created_at < before)
        ]
        return [self._sibling(key) for key in keys[:limit]]

    async def forget_user(self) -> bool:
        if await self.sessions_of_user(1):
            return False
        if await self.user_is_erased():
            del self.store.users[self.user_id]
        return True

    def _sibling(self, key: str) -> "InMemorySessionManager":
        session_id = public_session_id(key)
        return InMemorySessionManager(
            self.user, session_id, store=self.store, settings=self.settings, category=self.category
        )

    def _find(self) -> _Session | None:
        session = self.store.sessions.get(self.key)
        return None if session is None or session.is_erased else session

    def _close(self, session: _Session, answer: SessionMessage) -> SessionMessage:
        stored = self._put(session, answer)
        session.head = replace(
            session.head, active_turn_id=None, waiting_until=stored.waiting_until, changed_at=datetime.now(UTC)
        )
        return stored

    def _change_waiting(self, session: _Session, answer: SessionMessage, seen_turn_id: str | None) -> None:
        """Replace the waiting answer, if no run has written since `seen_turn_id`."""
        waiting = session.by_id(answer.id)
        if waiting is None or waiting.status != "waiting" or session.head.latest_turn_id != seen_turn_id:
            raise StorageConflict(f"answer {answer.id} does not wait any more")
        changed = replace(_checked(answer), feedback=waiting.feedback)
        session.messages[session.messages.index(waiting)] = deepcopy(changed)

    def _put(self, session: _Session, answer: SessionMessage) -> SessionMessage:
        """Store the answer, or keep the previous one if this one has nothing new."""
        previous = session.message(answer.turn_number, "assistant")
        if previous is not None:
            if not answer.replaces(previous):
                return previous
            session.messages.remove(previous)
            if previous.id == answer.id:
                answer = replace(answer, feedback=previous.feedback)
        self._insert(session, answer)
        return answer

    def _insert(self, session: _Session, message: SessionMessage) -> None:
        if session.holding(message.id):
            raise StorageConflict(f"there is a message {message.id!r} already")
        session.messages.append(deepcopy(message))


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


def _newest(summaries: Sequence[RollingSummary]) -> RollingSummary | None:
    return summaries[-1] if summaries else None
