"""Keeps a running turn alive in the registry: once a tick it renews the lease, looks for a stop and logs the events."""

import asyncio
import logging
from collections.abc import Callable, Iterator

from omniagent.errors import RegistryUnavailable
from omniagent.streaming.log import EventLog
from omniagent.turns.registry import MAX_CHUNK_BYTES, Claim, Renewal, TurnRegistry

logger = logging.getLogger("omniagent.turns")

RELEASE_SECONDS = 2.0


class Keeper:
    """Owned by one turn. A registry that cannot be reached costs that turn its stop and resume, nothing else."""

    def __init__(
        self,
        registry: TurnRegistry,
        claim: Claim,
        log: EventLog,
        *,
        tick_seconds: float,
        on_renewal: Callable[[Renewal], None],
    ) -> None:
        self._registry = registry
        self._claim = claim
        self._log = log
        self._tick_seconds = tick_seconds
        self._on_renewal = on_renewal
        self._logged_frames = 0
        self._next_chunk = 0
        self._ended = asyncio.Event()
        self._unreachable = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._tick_until_ended())

    async def finish(self) -> None:
        """Log what is left, then give the session back. Bounded: an unreachable registry does not hold the turn."""
        self._ended.set()
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                if self._task is not None:
                    await self._task
                await self._flush()
                await self._registry.release(self._claim)
        except (RegistryUnavailable, TimeoutError) as exc:
            logger.warning("turn not released, its lease will run out", extra={"cause": str(exc)})

    async def _tick_until_ended(self) -> None:
        while not self._ended.is_set():
            try:
                async with asyncio.timeout(self._tick_seconds):
                    await self._ended.wait()
            except TimeoutError:
                await self._tick()

    async def _tick(self) -> None:
        try:
            renewal, _ = await asyncio.gather(self._registry.renew(self._claim), self._flush())
        except RegistryUnavailable as exc:
            if not self._unreachable:
                logger.warning("turn registry unreachable: no stop, no resume", extra={"cause": str(exc)})
            self._unreachable = True
            return
        self._unreachable = False
        if renewal is not Renewal.RUNNING:
            self._on_renewal(renewal)

    async def _flush(self) -> None:
        frames = self._log.frames[self._logged_frames :]
        for chunk in _chunks(frames):
            await self._registry.append(self._claim, self._next_chunk, b"".join(chunk))
            self._next_chunk += 1
            self._logged_frames += len(chunk)


def _chunks(frames: list[bytes]) -> Iterator[list[bytes]]:
    """Cut frames into runs that fit into one item each. A frame is never cut."""
    run: list[bytes] = []
    size = 0
    for frame in frames:
        if run and size + len(frame) > MAX_CHUNK_BYTES:
            yield run
            run, size = [], 0
        run.append(frame)
        size += len(frame)
    if run:
        yield run
