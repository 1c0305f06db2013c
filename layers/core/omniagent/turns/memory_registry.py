"""`MemoryRegistry`: the registry of a single process, for scripts, servers and tests."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from omniagent.errors import QueueFull
from omniagent.turns.lease import (
    ERASE,
    GIVEN_BACK,
    MAX_INBOX_BYTES,
    Claim,
    InboxMessage,
    OnDead,
    Reader,
    Renewal,
    RunningTurn,
    TurnRegistry,
    is_reserved_for_other,
)

KEPT_BYTES = 64 * 1024 * 1024
"""Maximum size of the kept logs of ended turns. Their answers are stored elsewhere."""


@dataclass(slots=True)
class _Lease:
    turn: RunningTurn
    until: float

    @property
    def has_work(self) -> bool:
        """Whether an unclaimed session has messages to run or a question to ask again."""
        return bool(self.turn.inbox or self.turn.claim.question)


@dataclass(frozen=True, slots=True)
class _Chunk:
    holder: str
    frames: bytes


@dataclass(slots=True)
class MemoryRegistry(TurnRegistry):
    """An in-memory registry, shared by all runners of a process."""

    outlives_process: ClassVar[bool] = False

    lease_seconds: float = 10.0
    clock: Callable[[], float] = time.monotonic
    kept_bytes: int = KEPT_BYTES
    _leases: dict[str, _Lease] = field(default_factory=dict)
    _readers: dict[str, dict[str, tuple[str, float]]] = field(default_factory=dict)
    _logs: dict[str, dict[str, dict[int, _Chunk]]] = field(default_factory=dict)
    """By session and turn, in the order of the turns."""
    _ended: dict[tuple[str, str], int] = field(default_factory=dict)
    """The size of each log whose turn has ended, the oldest first."""
    _ended_bytes: int = 0

    async def claim(self, claim: Claim, on_dead: OnDead | None = None) -> RunningTurn | None:
        held = await self.running(claim.session)
        if held is not None and held.alive:
            return None if held.claim.token == claim.token else held
        if held is not None and is_reserved_for_other(held, claim):
            return held
        self._take(claim, held.inbox if held is not None else ())
        if held is not None and held.has_died and on_dead is not None:
            on_dead(held.claim)
        return None

    async def seize(self, claim: Claim) -> RunningTurn | None:
        held = await self.running(claim.session)
        self._take(claim)
        return held

    async def renew(self, claim: Claim) -> Renewal:
        lease = self._leases.get(claim.session)
        if lease is None or lease.turn.claim.token != claim.token:
            return Renewal.LOST
        lease.until = self.clock() + self.lease_seconds
        lease.turn = replace(lease.turn, claim=claim)
        return Renewal("stopping" if lease.turn.stopping else "running", lease.turn.inbox)

    async def post(self, claim: Claim, message: InboxMessage, limit: int, *, stop: bool = False) -> bool:
        lease = self._leases.get(claim.session)
        if lease is None or lease.turn.claim.token != claim.token or claim.message_id == ERASE:
            return False
        inbox = lease.turn.inbox
        if not any(known.id == message.id for known in inbox):
            size = sum(len(known.text.encode()) for known in (*inbox, message))
            if len(inbox) >= limit or (inbox and size > MAX_INBOX_BYTES):
                raise QueueFull
            inbox = (*inbox, message)
        lease.turn = replace(lease.turn, inbox=inbox, stopping=stop or lease.turn.stopping)
        return True

    async def release(self, claim: Claim, taken: Collection[str] = ()) -> bool:
        lease = self._leases.get(claim.session)
        if lease is None or lease.turn.claim.token != claim.token:
            return False
        if left := tuple(message for message in lease.turn.inbox if message.id not in taken):
            given_back = replace(claim, question=b"")
            lease.turn, lease.until = replace(lease.turn, claim=given_back, inbox=left), GIVEN_BACK
        else:
            del self._leases[claim.session]
        self._keep_log(claim.session, claim.turn_id)
        return bool(left)

    async def let_go(self, claim: Claim) -> None:
        lease = self._leases.get(claim.session)
        if lease is not None and lease.turn.claim.token == claim.token:
            lease.until = self.clock()

    async def running(self, session: str) -> RunningTurn | None:
        lease = self._leases.get(session)
        if lease is None:
            return None
        return replace(lease.turn, lease_left=lease.until - self.clock(), lease_until=lease.until)

    async def stop(self, session: str, message_id: str | None = None) -> bool:
        held = await self.running(session)
        if held is None:
            return False
        runs = held.alive and held.claim.is_named(message_id)
        named = [message.id for message in held.inbox if message_id in (None, message.id)]
        inbox = tuple(replace(message, stopped=message.stopped or message.id in named) for message in held.inbox)
        self._leases[session].turn = replace(held, stopping=held.stopping or runs, inbox=inbox)
        return runs or bool(named)

    async def append(self, claim: Claim, number: int, frames: bytes) -> bool:
        log = self._logs.setdefault(claim.session, {}).setdefault(claim.turn_id, {})
        if number in log and log[number].holder != claim.token:
            return False
        log[number] = _Chunk(claim.token, frames)
        return True

    async def read(self, session: str, turn_id: str, after: int = -1) -> list[tuple[int, bytes]]:
        chunks = self._logs.get(session, {}).get(turn_id, {})
        return sorted((number, chunk.frames) for number, chunk in chunks.items() if number > after)

    async def enter(self, reader: Reader) -> Sequence[str]:
        now, readers = self.clock(), self._readers.setdefault(reader.user_id, {})
        for gone in [key for key, (_, until) in readers.items() if until <= now]:
            del readers[gone]
        others = [session for key, (session, _) in readers.items() if key != reader.id]
        readers[reader.id] = (reader.session, now + reader.seconds)
        return [reader.session, *others]

    async def leave(self, reader: Reader) -> None:
        readers = self._readers.get(reader.user_id, {})
        readers.pop(reader.id, None)
        if not readers:
            self._readers.pop(reader.user_id, None)

    async def erase(self, owner: str, limit: int = 500) -> bool:
        for turn_id in list(self._logs.get(owner, {}))[:limit]:
            self._drop_log(owner, turn_id)
        return owner not in self._logs

    async def orphaned(self, after: str = "", limit: int = 100) -> Sequence[str]:
        now = self.clock()
        free = (key for key, lease in self._leases.items() if lease.until <= now and lease.has_work)
        return sorted(key for key in free if key > after)[:limit]

    def _take(self, claim: Claim, inbox: tuple[InboxMessage, ...] = ()) -> None:
        self._leases[claim.session] = _Lease(
            RunningTurn(claim, claim.is_stopped, self.lease_seconds, inbox=inbox), self.clock() + self.lease_seconds
        )
        # Only a session's last turn can still be followed or repaired.
        for turn_id in list(self._logs.get(claim.session, {}))[:-1]:
            self._drop_log(claim.session, turn_id)

    def _keep_log(self, session: str, turn_id: str) -> None:
        """Keep an ended turn's log for readers and repairs until newer logs need the space."""
        log = self._logs.get(session, {}).get(turn_id)
        if log is None:
            return
        self._ended[session, turn_id] = size = sum(len(chunk.frames) for chunk in log.values())
        self._ended_bytes += size
        while self._ended_bytes > self.kept_bytes:
            self._drop_log(*next(iter(self._ended)))

    def _drop_log(self, session: str, turn_id: str) -> None:
        self._ended_bytes -= self._ended.pop((session, turn_id), 0)
        logs = self._logs[session]
        del logs[turn_id]
        if not logs:
            del self._logs[session]
