"""What a store of sessions offers: `SessionManager`, one session of one user, and `SessionDirectory`, those of all."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, Self

from omniagent.errors import ConfigurationError, InvalidRequest, NotFound
from omniagent.messages import Feedback
from omniagent.session.history import SessionHistory
from omniagent.session.ids import check_id, new_id, public_session_id, session_key, user_id_of
from omniagent.session.live import Change, LiveTurn, Place, SessionHead, SessionMessage
from omniagent.session.window import RollingSummary
from omniagent.settings import Settings


class OpenTurn(Protocol):
    """A running turn, as its owner sees it."""

    def shut_down(self) -> None:
        """End early and keep the text so far."""

    async def ended(self) -> None:
        """Wait until everything is stored and released. Never raises."""


class OpenTurns(set[OpenTurn]):
    """The running turns of one store."""

    def shut_down(self) -> None:
        """End every turn early; each keeps its text. Safe to call from a signal handler of the event loop."""
        for turn in list(self):
            turn.shut_down()

    async def finish(self) -> None:
        """End every turn and wait until each has stored its answer."""
        while turns := list(self):
            self.shut_down()
            await asyncio.gather(*(turn.ended() for turn in turns))
            self.difference_update(turns)


@dataclass(frozen=True, slots=True)
class SessionAddress:
    """A session's user, id and category: what a `SessionManager` is created from."""

    user: str
    session_id: str
    category: str | None = None

    @property
    def key(self) -> str:
        return session_key(user_id_of(self.user), self.session_id)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session in a list of a user's sessions."""

    session_id: str
    name: str | None
    updated_at: datetime
    """When its last turn began or ended."""
    latest_turn_number: int
    waiting_until: datetime | None = None
    """When its open requests expire. None: it waits for nobody. `Runner.requests` reads them."""
    agent: str | None = None
    """The name of its agent. None in a project with one agent."""

    @classmethod
    def of(cls, key: str, head: SessionHead, updated_at: datetime) -> Self:
        waiting_until = head.waiting.until if head.waiting is not None else None
        return cls(public_session_id(key), head.name, updated_at, head.tip.turn_number, waiting_until, head.agent)


def checked_limit(limit: int) -> int:
    """Return the limit of a list. MongoDB would take 0 for no limit."""
    if limit < 1:
        raise ConfigurationError(f"list_sessions(limit={limit!r:.100}): must be 1 or more")
    return limit


class SessionDirectory(Protocol):
    """Finds sessions of all users: for jobs, for the sweep, and for deletions.

    The stores do: `InMemoryStore`, and what `MongoBackendAdapter` hands out.
    """

    async def list_sessions(
        self, user: str, *, limit: int = 20, before: SessionInfo | None = None
    ) -> Sequence[SessionInfo]:
        """Return a user's sessions, the most recently used first; with `before`, those after this one in the list."""

    async def due(self, now: datetime, limit: int) -> Sequence[SessionAddress]:
        """Return sessions that may need somebody, the longest due first: a turn that may be dead or expired, or
        messages in line that nobody answers.
        """

    async def address_of(self, key: str) -> SessionAddress | None:
        """Return the address of the session with this key. None when its user is unknown."""

    async def mark_user_erased(self, user_id: str, limit: int = 500) -> bool:
        """Mark the user as deleted, then up to `limit` of their sessions. No turn of theirs can begin any more.

        Returns True when all are marked.
        """

    async def user_is_erased(self, user_id: str) -> bool:
        """Whether the user is marked as deleted but not deleted yet."""

    async def mark_idle(self, before: datetime, limit: int = 500) -> None:
        """Mark up to `limit` sessions of any user without messages since then as deleted."""

    async def marked_sessions(self, limit: int = 500) -> Sequence[SessionAddress]:
        """Return sessions of any user that are marked as deleted, and whose request has ended without deleting them."""

    async def marked_users(self, limit: int = 500) -> Sequence[str]:
        """Return the names of such users."""

    async def session_keys(self, user_id: str, *, limit: int = 500) -> Sequence[str]:
        """Return the keys of the user's sessions, including those being deleted."""

    async def erase_some(self, key: str, limit: int = 500) -> bool:
        """Delete up to `limit` messages and summaries of a marked session, then the session itself.

        Returns True when nothing is left, also if a new session has the id since. Can be repeated after any failure.
        """

    async def forget_user(self, user_id: str) -> bool:
        """Delete a marked user. Returns False if there are sessions, or if one may still appear: the mark is young."""


class SessionManager(SessionHistory):
    """Reads and writes one session. `window` decides what the model is shown of it.

    Every method raises `StorageUnavailable` if the store cannot be reached.
    """

    store: SessionDirectory
    open_turns: OpenTurns
    """The turns that this process runs on the store. They must be ended before the store is closed."""

    def __init__(
        self, user: str, session_id: str | None = None, *, settings: Settings | None = None, category: str | None = None
    ) -> None:
        if not isinstance(category, str | None):
            raise ConfigurationError(f"the category of a user is {category!r:.100}: pass a name, as text, or None")
        if not isinstance(settings, Settings | None):
            raise ConfigurationError(f"the settings of a session are {settings!r:.100}: pass Settings(…), or None")
        self.user = user
        self.category = category
        self.session_id = check_id(session_id, "session id") if session_id else new_id()
        self._has_settings = settings is not None
        self.settings = settings or Settings.from_env()
        self.user_id = user_id_of(user)
        self.key = session_key(self.user_id, self.session_id)

    def use_settings(self, read: Callable[[], Settings]) -> None:
        """Use these settings if the session was created without any."""
        if not self._has_settings:
            self.settings = read()

    @abstractmethod
    async def write(self, change: Change) -> bool:
        """Apply a change, if the session still has the version that it was made from. All of it, or nothing.

        Returns False if the session has moved on. A change that was applied before, with its reply lost, returns True.
        Raises `SessionErased` for a new session whose id or user is being deleted, and `StorageRejected` if a message
        cannot be stored as it is.
        """

    @abstractmethod
    async def busy_sessions(self) -> Sequence[tuple[str, LiveTurn | None]]:
        """Read the keys and turns of the user's other sessions that run a turn or have messages in line, up to 100."""

    @abstractmethod
    async def set_feedback(self, node: str, feedback: Feedback | None) -> SessionMessage:
        """Store the feedback in a message, or remove it. Returns the message. Raises `NotFound`."""

    @abstractmethod
    async def add_summary(self, summary: RollingSummary, at: Place, *, draft: bool = False) -> bool:
        """Store a summary that continues the newest one (or the newest draft) on the path to a place.

        Returns False when it does not continue it any more, or was generated before the session's `summary_basis`
        changed.
        """

    @abstractmethod
    async def publish_drafts(self, at: Place | None) -> bool:
        """Put the newest draft on the path to a place in the place of all summaries. Returns False when there is none.

        None: there is nothing left to summarize, so all summaries are deleted.
        """

    @abstractmethod
    async def rename(self, name: str, *, was: str | None) -> bool:
        """Rename the session if its name is still `was`. Returns False otherwise."""

    async def rate(self, message_id: str, feedback: Feedback | None) -> SessionMessage:
        """Store the user's feedback in an answer; None removes it. Returns the answer.

        Raises `NotFound`, and `InvalidRequest` for a message that is not an answer.
        """
        head = await self.head()
        found = await self.find(message_id, at=head.tip, anywhere=message_id) if head is not None else ()
        answer = next((each for each in found if each.node == message_id and each.role == "assistant"), None)
        if answer is None and (found or (head is not None and head.holds(message_id))):
            raise InvalidRequest("Only an answer can be rated.")
        if answer is None:
            raise NotFound
        return await self.set_feedback(answer.node, feedback)

    def sibling(self, key: str) -> Self:
        """Return another session of the same user."""
        other = copy(self)
        other.key, other.session_id = key, public_session_id(key)
        return other
