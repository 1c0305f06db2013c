"""`LeaseKeeper`: appends a turn's frames to the log and renews its lease, once per tick."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

from omniagent.turns.claiming import RELEASE_SECONDS, Notice
from omniagent.turns.event_log import EventLog
from omniagent.turns.lease import MAX_CHUNK_BYTES, Claim, InboxMessage, Renewal, TurnRegistry

logger = logging.getLogger(__name__)
STORE_SECONDS = 0.1
"""An answer that is stored within this time needs no chunk of its own."""
CHECKPOINT_SECONDS = 2.0
"""How long a tool waits for the log."""
PAUSED_TICKS = 2
"""An owner that has not renewed its claim for this many ticks renews it before it logs."""


class LeaseKeeper:
    """Owns one claim from acquisition to release.

    A tick's exceptions are logged, and the next tick retries. If the registry fails, the turn loses stop and resume,
    but it still ends in order.
    """

    def __init__(
        self,
        registry: TurnRegistry,
        claim: Claim,
        *,
        tick_seconds: float,
        release_seconds: float = RELEASE_SECONDS,
        notice: Notice | None = None,
    ) -> None:
        self.claim = claim
        self.release_seconds = release_seconds
        """How long the release of the session may take, unless the turn has less time left."""
        self.notice = notice or Notice()
        self.lost = False
        self.inbox: tuple[InboxMessage, ...] = ()
        """The messages that were posted to the session, as of the last renewal."""
        self._registry = registry
        self._tick_seconds = tick_seconds
        self._on_renewal: Callable[[Renewal], None] = lambda _: None
        self._log: EventLog | None = None
        self._logged_frames = 0
        self._next_chunk = 0
        self._unconfirmed: list[bytes] = []
        self._wake = asyncio.Event()
        self._flush_timer: asyncio.TimerHandle | None = None
        self._is_ended = False
        self._failing = False
        self._flushing = asyncio.Lock()
        self._renewed_at = time.monotonic()
        self._task = asyncio.create_task(self._tick_until_ended(), name="lease-keeper")

    def watch(self, on_renewal: Callable[[Renewal], None]) -> None:
        """Call `on_renewal` if the turn must stop, its claim is lost, or its inbox has messages."""
        self._on_renewal = on_renewal
        if self.lost:
            on_renewal(Renewal.LOST)

    def attach(self, log: EventLog, *, logged: int = 0, next_chunk: int = 0) -> None:
        """Start appending the turn's frames to the chunk log: its message is durable now.

        The first `logged` frames are in earlier chunks. Followers are waiting for the next chunk, so it is written at
        once. The next renewal deletes the question.
        """
        self.claim = replace(self.claim, question=b"")
        self._log, self._logged_frames, self._next_chunk = log, logged, next_chunk
        if logged:
            log.when_shown(self.flush_now)
            self.flush_now()

    async def checkpoint(self) -> None:
        """Append all frames now. Never raises: without its registry a turn runs on, but cannot be taken over."""
        try:
            async with asyncio.timeout(CHECKPOINT_SECONDS):
                if self._was_paused and not self.lost:
                    await self._renew()
                if not self.lost:
                    await self._flush()
        except Exception as exc:
            self._note(exc)

    def flush_now(self) -> None:
        """Append all frames now, without waiting for it."""
        self._wake.set()

    def flush_soon(self) -> None:
        """Append all frames while the answer is being stored, unless that finishes at once."""
        self._flush_timer = asyncio.get_running_loop().call_later(STORE_SECONDS, self._wake.set)

    async def finish(self, seconds: float = math.inf, taken: Collection[str] = ()) -> bool:
        """Append the remaining frames, then release the session and remove the messages taken from its inbox.

        Returns whether others are left. Takes at most `seconds` or `release_seconds` and never raises.
        """
        return bool(await self._end(seconds, lambda: self._registry.release(self.claim, taken)))

    async def abandon(self, taken: Collection[str] = ()) -> bool:
        """Release the session of a turn that does not begin. It needs no watch."""
        self.notice.withdraw()
        return await self.finish(taken=taken)

    async def hand_over(self, seconds: float = math.inf) -> None:
        """Append the remaining frames, then end the lease so that another process can take over. Never raises."""
        await self._end(seconds, lambda: self._registry.let_go(self.claim))

    async def _end(self, seconds: float, release: Callable[[], Awaitable[bool | None]]) -> bool | None:
        self._is_ended = True
        self._wake.set()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        try:
            async with asyncio.timeout(min(seconds, self.release_seconds)):
                await asyncio.gather(self._task, return_exceptions=True)
                if self._was_paused and not self.lost:
                    await self._renew()
                if not self.lost:
                    await self._flush()
                    return await release()
        except Exception as exc:  # the turn is over either way
            logger.warning("claim not released, its lease will run out", extra={"cause": _cause(exc)})
        return False

    async def _tick_until_ended(self) -> None:
        while not self._is_ended:
            try:
                async with asyncio.timeout(self._tick_seconds):
                    await self._wake.wait()
            except TimeoutError:
                await self._tick()
            else:
                self._wake.clear()
                await self._flush_only()

    async def _flush_only(self) -> None:
        if self._is_ended or self.lost or self._was_paused:
            return
        [failure] = await asyncio.gather(self._flush(), return_exceptions=True)
        self._note(failure)

    async def _tick(self) -> None:
        if self.lost:
            return
        self.notice.give_again()
        if self._was_paused:
            renewal = await self._renew()
            [flushed] = [None] if self.lost else await asyncio.gather(self._flush(), return_exceptions=True)
        else:
            # Always await both: two ticks must never write the log concurrently.
            renewal, flushed = await asyncio.gather(self._renew(), self._flush(), return_exceptions=True)
        self._note(renewal or flushed)

    @property
    def _was_paused(self) -> bool:
        """Whether another process may have taken the claim and deleted the log since the last renewal.

        A deletion waits this long after it takes the claim; later, nothing may be logged without a renewal.
        """
        return time.monotonic() - self._renewed_at > PAUSED_TICKS * self._tick_seconds

    async def _renew(self) -> BaseException | None:
        """Renew the claim and handle the reply. Return the failure, if any."""
        asked_at = time.monotonic()
        [renewal] = await asyncio.gather(self._registry.renew(self.claim), return_exceptions=True)
        if isinstance(renewal, BaseException):
            return renewal
        self._renewed_at = asked_at
        self.inbox = renewal.inbox
        if renewal == Renewal.LOST:
            self._lose()
        elif renewal != Renewal.RUNNING:
            self._on_renewal(renewal)
        return None

    def _lose(self) -> None:
        self.lost = True
        self._on_renewal(Renewal.LOST)

    def _note(self, failure: BaseException | None) -> None:
        if failure is not None and not self._failing:
            logger.warning("turn registry failing: no stop, no resume", extra={"cause": _cause(failure)})
        self._failing = failure is not None

    async def _flush(self) -> None:
        """Append all unlogged frames.

        If a write's outcome is unknown, retry it with identical bytes: a follower may already have read that chunk.
        """
        if self._log is None:
            return
        async with self._flushing:
            await self._append_frames(self._log)

    async def _append_frames(self, log: EventLog) -> None:
        end = len(log.frames)
        while self._logged_frames < end:
            self._unconfirmed = self._unconfirmed or _chunk(log.frames[self._logged_frames : end])
            if not await self._registry.append(self.claim, self._next_chunk, b"".join(self._unconfirmed)):
                self._lose()
                return
            self._next_chunk += 1
            self._logged_frames += len(self._unconfirmed)
            self._unconfirmed = []


def _chunk(frames: list[bytes]) -> list[bytes]:
    """Take as many frames as fit into one item. A frame is never split; the recorder keeps each small enough."""
    size = 0
    for count, frame in enumerate(frames):
        size += len(frame)
        if size > MAX_CHUNK_BYTES and count:
            return frames[:count]
    return frames


def _cause(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"
