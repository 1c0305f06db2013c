"""What is known of running turns, by every process. `MemoryRegistry` serves one process; DynamoDB serves many."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

MAX_CHUNK_BYTES = 300_000
"""A chunk must fit into one item of the table (400 KB), whatever its frames are."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run the turn of a session. `turn_id` fences everything that is written under it."""

    session: str
    turn_id: str
    message_id: str


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """A turn that holds a session, as another process sees it."""

    claim: Claim
    stopping: bool
    lease_left: float
    """Seconds until the lease runs out; zero or less when its process is taken for dead."""

    @property
    def alive(self) -> bool:
        return self.lease_left > 0


class Renewal(Enum):
    """What renewing a lease told."""

    RUNNING = "running"
    STOPPING = "stopping"
    LOST = "lost"


class TurnRegistry(ABC):
    """Claim, renew, stop, release; and the log of what a turn has streamed, one chunk a tick.

    Every method raises `RegistryUnavailable` when the table cannot be reached.
    """

    @abstractmethod
    async def claim(self, claim: Claim) -> RunningTurn | None:
        """Take the session. Returns the turn that holds it, or None when it is now ours."""

    @abstractmethod
    async def renew(self, claim: Claim) -> Renewal:
        """Extend the lease and read the stop flag, in one write."""

    @abstractmethod
    async def release(self, claim: Claim) -> None:
        """Give the session back. A claim that was lost meanwhile is left alone."""

    @abstractmethod
    async def running(self, session: str) -> RunningTurn | None:
        """Return the turn that holds a session, dead or alive."""

    @abstractmethod
    async def stop(self, session: str) -> bool:
        """Flag the session's turn to stop. Returns False when none is running."""

    @abstractmethod
    async def append(self, claim: Claim, number: int, frames: bytes) -> None:
        """Add the frames of one tick to the turn's chunk log."""

    @abstractmethod
    async def read(self, session: str, turn_id: str, after: int = -1) -> list[tuple[int, bytes]]:
        """Return the chunks after the given number, in order."""

    @abstractmethod
    async def erase(self, session: str) -> None:
        """Forget everything about a session."""

    async def aclose(self) -> None:  # noqa: B027 - a registry without connections has nothing to close
        """Close the registry's connections."""


@dataclass(slots=True)
class _Entry:
    turn: RunningTurn
    lease_until: float


@dataclass(slots=True)
class MemoryRegistry(TurnRegistry):
    """The registry of a single process: scripts, tests."""

    lease_seconds: float = 10.0
    clock: Callable[[], float] = time.monotonic
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _chunks: dict[tuple[str, str], dict[int, bytes]] = field(default_factory=dict)

    async def claim(self, claim: Claim) -> RunningTurn | None:
        held = await self.running(claim.session)
        if held is not None and held.alive:
            return None if held.claim.turn_id == claim.turn_id else held
        lease_until = self.clock() + self.lease_seconds
        self._entries[claim.session] = _Entry(RunningTurn(claim, False, self.lease_seconds), lease_until)
        # Only the last turn of a session can still be repaired: the memory of a script must not grow with its turns.
        for key in [key for key in self._chunks if key[0] == claim.session][:-1]:
            del self._chunks[key]
        return None

    async def renew(self, claim: Claim) -> Renewal:
        entry = self._entries.get(claim.session)
        if entry is None or entry.turn.claim.turn_id != claim.turn_id:
            return Renewal.LOST
        entry.lease_until = self.clock() + self.lease_seconds
        return Renewal.STOPPING if entry.turn.stopping else Renewal.RUNNING

    async def release(self, claim: Claim) -> None:
        entry = self._entries.get(claim.session)
        if entry is not None and entry.turn.claim.turn_id == claim.turn_id:
            del self._entries[claim.session]

    async def running(self, session: str) -> RunningTurn | None:
        entry = self._entries.get(session)
        if entry is None:
            return None
        return replace(entry.turn, lease_left=entry.lease_until - self.clock())

    async def stop(self, session: str) -> bool:
        held = await self.running(session)
        if held is None or not held.alive:
            return False
        self._entries[session].turn = replace(held, stopping=True)
        return True

    async def append(self, claim: Claim, number: int, frames: bytes) -> None:
        self._chunks.setdefault((claim.session, claim.turn_id), {})[number] = frames

    async def read(self, session: str, turn_id: str, after: int = -1) -> list[tuple[int, bytes]]:
        chunks = self._chunks.get((session, turn_id), {})
        return sorted((number, frames) for number, frames in chunks.items() if number > after)

    async def erase(self, session: str) -> None:
        self._entries.pop(session, None)
        for key in [key for key in self._chunks if key[0] == session]:
            del self._chunks[key]
