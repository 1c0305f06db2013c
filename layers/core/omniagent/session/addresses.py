"""Sessions found without knowing their user: for jobs, for the sweep, and for deletions."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from omniagent.errors import ConfigurationError
from omniagent.session.ids import session_key, user_id_of


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


def checked_limit(limit: int) -> int:
    """Return the limit of a list. MongoDB would take 0 for no limit."""
    if limit < 1:
        raise ConfigurationError(f"list_sessions(limit={limit!r:.100}): must be 1 or more")
    return limit


class SessionDirectory(Protocol):
    """Finds sessions of all users. The stores do: `InMemoryStore`, and what `MongoBackendAdapter` hands out."""

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

    async def forget_user(self, user_id: str) -> bool:
        """Delete a marked user. Returns False if there are sessions, or if one may still appear: the mark is young."""
