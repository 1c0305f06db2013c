"""`EventLog` and `LeaseKeeper`: a turn's frames are logged, and its lease is renewed, once per tick."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from omniagent.protocol import sse
from omniagent.protocol.events import FinishStep, Start, StartStep, SteeringData, StreamEvent
from omniagent.turns.lease import MAX_CHUNK_BYTES, Claim, InboxMessage, Renewal, RunningTurn, TurnRegistry

KEEP_ALIVE_SECONDS = 15.0
_SHOWS_NOTHING = (Start, StartStep, FinishStep, SteeringData)


class EventLog:
    """Each event is encoded once, when it is pushed. Readers start at the first frame and read at their own pace."""

    def __init__(self, frames: Iterable[bytes] = ()) -> None:
        self.frames: list[bytes] = list(frames)
        self.closed = False
        self._held_at: int | None = None
        self._last_note = len(self.frames) - 1
        self._start: list[bytes] | None = None
        self._known_to = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._on_shown: Callable[[], None] | None = None

    def push(self, event: StreamEvent) -> None:
        frame = sse.encode(event)
        if self._start is not None:
            if isinstance(event, _SHOWS_NOTHING):
                self._start.append(frame)
                return
            self.frames += self._start
            self._start = None
        self.frames.append(frame)
        if self._waiting:
            self._wake()
        if self._on_shown is not None and not isinstance(event, _SHOWS_NOTHING):
            on_shown, self._on_shown = self._on_shown, None
            on_shown()

    def when_shown(self, on_shown: Callable[[], None]) -> None:
        """Call back once, at the next event that shows a part of the answer."""
        self._on_shown = on_shown

    def note(self, frame: bytes) -> None:
        """Add a note to the chunk log. Readers of the stream do not see it."""
        self._last_note = len(self.frames)
        self.frames.append(frame)

    def mark_continued(self, mark: bytes) -> None:
        """Mark the end of what was shown before the turn waited. Readers here get only its start, followers all."""
        self.frames.append(mark)
        self._known_to = len(self.frames)

    def withhold_start(self) -> None:
        """Withhold the start of the answer until some of it is shown: it may leave a previous answer in place.

        Readers get a comment meanwhile, so that the status line is not delayed.
        """
        self.frames.append(sse.KEEP_ALIVE)
        self._start = []

    def drop_start(self) -> None:
        """Drop the withheld start: none of this answer will be shown."""
        self._start = None

    def hold(self) -> None:
        """Hide what is pushed from now on from readers until `close`."""
        if self._held_at is None:
            self._held_at = len(self.frames)

    def end(self) -> None:
        """Add the mark that ends the stream. Nothing may be pushed after it."""
        if not self.frames or self.frames[-1] is not sse.DONE:
            self.frames.append(sse.DONE)

    def close(self) -> None:
        """Let the readers see the end."""
        self._held_at = None
        self.closed = True
        self._wake()

    async def read_frames(self) -> AsyncIterator[bytes]:
        """Yield the stream's bytes from its start. Frames that are ready together are yielded as one piece."""
        position = 0
        if self._known_to:
            yield next(frame for frame in self.frames if frame.startswith(b"data: "))  # the start
            position = self._known_to
        while True:
            if ready := self.frames[position : self._held_at]:
                has_notes = position <= self._last_note
                position += len(ready)
                frames = ready[0] if len(ready) == 1 else b"".join(ready)
                if not has_notes or (frames := sse.without_notes(frames)):
                    yield frames
            elif self.closed:
                return
            elif not await self._changed():
                yield sse.KEEP_ALIVE

    async def _changed(self) -> bool:
        """Wait for a new frame. False on timeout. A timer per wait is cheaper than `wait_for`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        timer = loop.call_later(KEEP_ALIVE_SECONDS, _resolve, future)
        before = len(self.frames)
        try:
            await future
        finally:
            timer.cancel()
            if future in self._waiting:
                self._waiting.remove(future)
        return self.closed or len(self.frames) > before

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _resolve(future)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


logger = logging.getLogger(__name__)

RELEASE_SECONDS = 2.0
STORE_SECONDS = 0.1
"""An answer that is stored within this time needs no chunk of its own."""
CHECKPOINT_SECONDS = 2.0
"""How long a tool waits for the log."""
NOTICE_SECONDS = 20.0
"""How long a turn waits until it is watched. AWS's own calls give up earlier."""
PAUSED_TICKS = 2
"""An owner that has not renewed its claim for this many ticks renews it before it logs."""


LATE_CLAIM_SECONDS = 1.0
"""A lease begins when the claim is sent. One that was granted so much later is renewed before it is used."""


async def requested(registry: TurnRegistry, claim: Claim, request: Awaitable[RunningTurn | None]) -> RunningTurn | None:
    """Await a claim request. A failed request may still have been granted, so the claim is then released.

    A stopped turn's claim stays and its lease is ended: the stop flag is in it.
    """
    try:
        return await request
    except BaseException:
        with suppress(Exception):
            async with asyncio.timeout(RELEASE_SECONDS):
                await (registry.let_go(claim) if claim.is_stopped else registry.release(claim))
        raise


async def taken(registry: TurnRegistry, claim: Claim, bury: Callable[[Claim], Awaitable[None]]) -> RunningTurn | None:
    """Claim a session, like `registry.claim`. The reservation of a dead previous holder is settled first."""

    async def take() -> RunningTurn | None:
        dead: list[Claim] = []
        is_lost = True
        while is_lost:
            asked_at = time.monotonic()
            held = await registry.claim(claim, dead.append)
            is_late = held is None and time.monotonic() - asked_at >= LATE_CLAIM_SECONDS
            is_lost = is_late and await registry.renew(claim) == Renewal.LOST
        for one in dead:
            await bury(one)
        return held

    return await requested(registry, claim, take())


class Notice:
    """Has one turn watched: sent in parallel with the turn's other work, and again every tick until it has arrived."""

    def __init__(self, send: Callable[[], Coroutine[Any, Any, bool]] | None = None) -> None:
        """`send` returns whether the notice has arrived."""
        self._send = send
        self._sending: asyncio.Task[bool] | None = None

    def give(self) -> None:
        """Send the notice. Does nothing if it was already given."""
        if self._sending is None and self._send is not None:
            self._sending = asyncio.create_task(self._send(), name="notice")

    def give_again(self) -> None:
        """Send the notice again if it has failed."""
        sent = self._sending
        if sent is not None and sent.done() and not sent.cancelled() and not sent.result():
            self._sending = None
            self.give()

    async def given(self) -> None:
        """Wait until it is sent or has failed. One that hangs is given up: the turn does not hang with it."""
        if self._sending is not None:
            _, hanging = await asyncio.wait([self._sending], timeout=NOTICE_SECONDS)
            if hanging:
                logger.warning("notice takes too long and is cancelled")
                self.withdraw()

    def withdraw(self) -> None:
        """Cancel the notice of a turn that does not begin. One that was already sent does no harm."""
        if self._sending is not None:
            self._sending.cancel()


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
        notice: Notice | None = None,
    ) -> None:
        self.claim = claim
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

    async def finish(self, seconds: float = RELEASE_SECONDS, taken: Collection[str] = ()) -> bool:
        """Append the remaining frames, then release the session and remove the messages taken from its inbox.

        Returns whether others are left. Takes at most `seconds` and never raises.
        """
        return bool(await self._end(seconds, lambda: self._registry.release(self.claim, taken)))

    async def abandon(self, taken: Collection[str] = ()) -> bool:
        """Release the session of a turn that does not begin. It needs no watch."""
        self.notice.withdraw()
        return await self.finish(RELEASE_SECONDS, taken)

    async def hand_over(self, seconds: float = RELEASE_SECONDS) -> None:
        """Append the remaining frames, then end the lease so that another process can take over. Never raises."""
        await self._end(seconds, lambda: self._registry.let_go(self.claim))

    async def _end(self, seconds: float, release: Callable[[], Awaitable[bool | None]]) -> bool | None:
        self._is_ended = True
        self._wake.set()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        try:
            async with asyncio.timeout(seconds):
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
