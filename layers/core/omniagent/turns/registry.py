"""`TurnRegistry`: what processes tell each other while a turn runs. Its journal, its signals, and who reads it.

The session's document, not the registry, says who may run a turn. The journal is the heartbeat: a process writes at
least one chunk in each third of a lease, and each number is written once. A process that finds a number taken by
another run has lost the turn.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

MAX_CHUNK_BYTES = 300_000
"""A chunk must fit into one item of the table (400 KB), whatever its records are."""
KEPT_DAYS = 7
"""How long a journal is kept unless a setting says otherwise. The sweep finishes a dead turn within minutes."""
MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of all journals in memory. The answers of those that are dropped are stored elsewhere."""
SHORT_RUN = 12
"""How much of a run's id a chunk carries: a tick of text must fit into one write unit (1 KB)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The records of one tick, one per line."""

    number: int
    run: str
    """The beginning of the id of the process that wrote it."""
    at: datetime
    lines: bytes


@dataclass(frozen=True, slots=True)
class Signals:
    """What others want from a running turn."""

    stop: bool = False
    mail: int = 0
    """How often messages that steer it got in line."""


class TurnRegistry(ABC):
    """The journals and signals of running turns. Every method raises `RegistryUnavailable` if it cannot be reached."""

    @abstractmethod
    async def append(self, session: str, journal: str, chunk: Chunk) -> bool:
        """Write the next chunk of a journal. Writing one's own chunk again is allowed.

        Returns False if another run has written a chunk with this number.
        """

    @abstractmethod
    async def read(self, session: str, journal: str, after: int = -1, *, newest: bool = False) -> list[Chunk]:
        """Return the chunks after a number in order, or only the newest one."""

    @abstractmethod
    async def signal(self, session: str, journal: str, *, stop: bool = False, mail: bool = False) -> None:
        """Send the turn a signal. Signals add up, and may be sent again."""

    @abstractmethod
    async def signals(self, session: str, journal: str) -> Signals:
        """Return the signals that were sent to the turn."""

    @abstractmethod
    async def count_reader(self, user_id: str, reader: str, seconds: float) -> int:
        """Count a reader of the user's turns for so many seconds, or no longer (0). Return the number of readers."""

    @abstractmethod
    async def erase(self, owner: str, limit: int = 500) -> bool:
        """Delete up to `limit` items of a session, by its key, or of a user, by their id.

        Returns True when nothing is left.
        """

    async def aclose(self) -> None:  # noqa: B027 - a registry without connections has nothing to close
        """Close the registry's connections."""


@dataclass(slots=True)
class MemoryRegistry(TurnRegistry):
    """The registry of a single process, for scripts, servers and tests. All runners of the process share it."""

    clock: Callable[[], float] = time.monotonic
    max_bytes: int = MAX_BYTES
    _journals: dict[tuple[str, str], dict[int, Chunk]] = field(default_factory=dict)
    """By session and journal, the oldest first."""
    _signals: dict[tuple[str, str], Signals] = field(default_factory=dict)
    _readers: dict[str, dict[str, float]] = field(default_factory=dict)
    _bytes: int = 0

    async def append(self, session: str, journal: str, chunk: Chunk) -> bool:
        chunks = self._journals.setdefault((session, journal), {})
        if chunk.number in chunks and chunks[chunk.number].run != chunk.run:
            return False
        self._bytes += len(chunk.lines) - (len(chunks[chunk.number].lines) if chunk.number in chunks else 0)
        chunks[chunk.number] = chunk
        while self._bytes > self.max_bytes and len(self._journals) > 1:
            self._drop(next(iter(self._journals)))
        return True

    async def read(self, session: str, journal: str, after: int = -1, *, newest: bool = False) -> list[Chunk]:
        chunks = self._journals.get((session, journal), {})
        found = sorted((chunk for chunk in chunks.values() if chunk.number > after), key=lambda chunk: chunk.number)
        return found[-1:] if newest else found

    async def signal(self, session: str, journal: str, *, stop: bool = False, mail: bool = False) -> None:
        known = await self.signals(session, journal)
        self._signals[session, journal] = Signals(known.stop or stop, known.mail + mail)

    async def signals(self, session: str, journal: str) -> Signals:
        return self._signals.get((session, journal), Signals())

    async def count_reader(self, user_id: str, reader: str, seconds: float) -> int:
        now, readers = self.clock(), self._readers.setdefault(user_id, {})
        readers[reader] = now + seconds
        for gone in [each for each, until in readers.items() if until <= now]:
            del readers[gone]
        if not readers:
            del self._readers[user_id]
        return len(readers)

    async def erase(self, owner: str, limit: int = 500) -> bool:
        self._readers.pop(owner, None)
        for key in [key for key in (*self._journals, *self._signals) if key[0] == owner][:limit]:
            self._drop(key)
        return not any(session == owner for session, _ in (*self._journals, *self._signals))

    def _drop(self, key: tuple[str, str]) -> None:
        self._bytes -= sum(len(chunk.lines) for chunk in self._journals.pop(key, {}).values())
        self._signals.pop(key, None)
