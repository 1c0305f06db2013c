"""`MemoryRegistry`: the registry of a single process, for scripts, servers and tests."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from omniagent.turns.registry import Chunk, Signals, TurnRegistry

MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of all journals. The answers of those that are dropped are stored elsewhere."""


@dataclass(slots=True)
class MemoryRegistry(TurnRegistry):
    """An in-memory registry, shared by all runners of a process."""

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
