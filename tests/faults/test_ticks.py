"""The log of a turn whose registry answers unevenly: the lease cannot be renewed, and writing takes its time."""

import asyncio
from dataclasses import dataclass, field

from omniagent.errors import RegistryUnavailable
from omniagent.protocol.events import TextDelta
from omniagent.turns.event_log import EventLog
from omniagent.turns.keeper import LeaseKeeper
from omniagent.turns.lease import Claim, Renewal
from omniagent.turns.memory_registry import MemoryRegistry

TICK_SECONDS = 0.01
CLAIM = Claim("session", "turn", "message")


@dataclass(slots=True)
class UnevenRegistry(MemoryRegistry):
    """Refuses every renewal at once, and takes several ticks for each chunk."""

    overlaps: int = 0
    _writing: bool = False
    written: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def renew(self, claim: Claim) -> Renewal:
        raise RegistryUnavailable("no answer")

    async def append(self, claim: Claim, number: int, frames: bytes) -> bool:
        self.overlaps += self._writing
        self._writing = True
        await asyncio.sleep(5 * TICK_SECONDS)
        is_ours = await MemoryRegistry.append(self, claim, number, frames)
        self._writing = False
        self.written.release()
        return is_ours


async def test_a_slow_tick_is_not_overtaken_by_the_next() -> None:
    registry = UnevenRegistry()
    log = EventLog()
    keeper = LeaseKeeper(registry, CLAIM, tick_seconds=TICK_SECONDS)
    keeper.attach(log)
    for number in range(5):
        log.push(TextDelta("0", f"piece {number}"))
        await registry.written.acquire()
    log.end()
    await keeper.finish()

    assert registry.overlaps == 0
    assert b"".join(frames for _, frames in await registry.read("session", "turn")) == b"".join(log.frames)
