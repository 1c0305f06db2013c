"""`MemoryRegistry`: the registry of a single process, for scripts, servers and tests."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from omniagent.turns.lease import Claim, Renewal, RunningTurn, TurnRegistry


@dataclass(slots=True)
class _Lease:
    turn: RunningTurn
    until: float


@dataclass(slots=True)
class MemoryRegistry(TurnRegistry):
    """Shared by every runner of the process that answers the same sessions."""

    lease_seconds: float = 10.0
    clock: Callable[[], float] = time.monotonic
    _leases: dict[str, _Lease] = field(default_factory=dict)
    _chunks: dict[tuple[str, str], dict[int, bytes]] = field(default_factory=dict)

    async def claim(self, claim: Claim) -> RunningTurn | None:
        held = await self.running(claim.session)
        if held is not None and held.alive:
            return None if held.claim.turn_id == claim.turn_id else held
        self._take(claim)
        return None

    async def seize(self, claim: Claim) -> RunningTurn | None:
        held = await self.running(claim.session)
        self._take(claim)
        return held

    async def renew(self, claim: Claim) -> Renewal:
        lease = self._leases.get(claim.session)
        if lease is None or lease.turn.claim.turn_id != claim.turn_id:
            return Renewal.LOST
        lease.until = self.clock() + self.lease_seconds
        return Renewal.STOPPING if lease.turn.stopping else Renewal.RUNNING

    async def release(self, claim: Claim) -> None:
        lease = self._leases.get(claim.session)
        if lease is not None and lease.turn.claim.turn_id == claim.turn_id:
            del self._leases[claim.session]

    async def running(self, session: str) -> RunningTurn | None:
        lease = self._leases.get(session)
        return None if lease is None else replace(lease.turn, lease_left=lease.until - self.clock())

    async def stop(self, session: str, message_id: str | None = None) -> bool:
        held = await self.running(session)
        if held is None or not held.alive or not held.claim.is_named(message_id):
            return False
        self._leases[session].turn = replace(held, stopping=True)
        return True

    async def append(self, claim: Claim, number: int, frames: bytes) -> None:
        self._chunks.setdefault((claim.session, claim.turn_id), {})[number] = frames

    async def read(self, session: str, turn_id: str, after: int = -1) -> list[tuple[int, bytes]]:
        chunks = self._chunks.get((session, turn_id), {})
        return sorted((number, frames) for number, frames in chunks.items() if number > after)

    async def erase(self, owner: str, limit: int = 500) -> bool:
        for key in self._turns_of(owner)[:limit]:
            del self._chunks[key]
        return not self._turns_of(owner)

    def _take(self, claim: Claim) -> None:
        self._leases[claim.session] = _Lease(
            RunningTurn(claim, False, self.lease_seconds), self.clock() + self.lease_seconds
        )
        # Only a session's last turn can still be followed or repaired: memory must not grow with the turns.
        for key in self._turns_of(claim.session)[:-1]:
            del self._chunks[key]

    def _turns_of(self, session: str) -> list[tuple[str, str]]:
        return [key for key in self._chunks if key[0] == session]
