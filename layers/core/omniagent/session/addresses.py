"""Sessions found without knowing their user: for jobs, and for whoever watches all of a store's turns."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from omniagent.session.manager import session_key, user_id_of


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


class SessionDirectory(Protocol):
    """Finds sessions of all users. The stores do: `InMemoryStore`, and what `MongoBackendAdapter` hands out."""

    @property
    def outlives_process(self) -> bool:
        """Whether another process finds the same sessions."""

    async def list_sessions(
        self, user: str, *, limit: int = 20, before: SessionInfo | None = None
    ) -> Sequence[SessionInfo]:
        """Return a user's sessions, the most recently used first; with `before`, those after this one in the list."""

    def unfinished(self, before: datetime) -> AsyncIterator[Sequence[SessionAddress]]:
        """Yield the sessions whose turn began before a time and has not ended, the oldest first, some at a time."""

    async def expired(self, limit: int) -> Sequence[SessionAddress]:
        """Return sessions whose turn has waited longer than its requests allow, the longest expired first."""

    async def address_of(self, key: str) -> SessionAddress | None:
        """Return the address of the session with this key. None when its user is unknown."""
