"""Keeps a running turn alive in the registry: once a tick it renews the lease, looks for a stop and logs the events."""

import asyncio
import logging
from collections.abc import Callable

from omniagent.errors import RegistryUnavailable
from omniagent.turns.event_log import EventLog
from omniagent.turns.lease import MAX_CHUNK_BYTES, Claim, Renewal, TurnRegistry

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
        self._unconfirmed: list[bytes] = []
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
        # Both are waited for, whatever becomes of one: two ticks must never write the log at the same time.
        renewal, logged = await asyncio.gather(self._registry.renew(self._claim), self._flush(), return_exceptions=True)
        self._note_reach(renewal if isinstance(renewal, BaseException) else logged)
        if isinstance(renewal, Renewal) and renewal is not Renewal.RUNNING:
            self._on_renewal(renewal)

    def _note_reach(self, failure: BaseException | None) -> None:
        if failure is not None and not isinstance(failure, RegistryUnavailable):
            raise failure
        if failure is not None and not self._unreachable:
            logger.warning("turn registry unreachable: no stop, no resume", extra={"cause": str(failure)})
        self._unreachable = failure is not None

    async def _flush(self) -> None:
        """Log the events there are. A chunk that may have been written is written again as it was, for its readers."""
        end = len(self._log.frames)
        while self._logged_frames < end:
            self._unconfirmed = self._unconfirmed or _chunk(self._log.frames[self._logged_frames : end])
            await self._registry.append(self._claim, self._next_chunk, b"".join(self._unconfirmed))
            self._next_chunk += 1
            self._logged_frames += len(self._unconfirmed)
            self._unconfirmed = []


def _chunk(frames: list[bytes]) -> list[bytes]:
    """Take as many frames as fit into one item. A frame is never cut."""
    size = 0
    for count, frame in enumerate(frames):
        size += len(frame)
        if size > MAX_CHUNK_BYTES and count:
            return frames[:count]
    return frames
