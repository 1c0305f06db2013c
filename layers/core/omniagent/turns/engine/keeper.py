"""`Keeper`: keeps one turn. Once per tick it appends to the turn's journal and reads its signals."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from omniagent.errors import RegistryMisconfigured, RegistryUnavailable, TurnLost
from omniagent.messages import StopReason
from omniagent.session.live import LiveTurn
from omniagent.turns.journal.live_journal import LiveJournal
from omniagent.turns.registry import MAX_CHUNK_BYTES, SHORT_RUN, Chunk, Signals
from omniagent.turns.setup import SessionSetup

logger = logging.getLogger(__name__)


class Keeper:
    """Owns the journal of one run.

    A tick's exceptions are logged, and the next tick retries. If the registry fails, the turn loses stop and resume and
    starts no tools, but it still ends in order.
    """

    def __init__(
        self,
        setup: SessionSetup,
        turn: LiveTurn,
        journal: LiveJournal,
        stop: Callable[[StopReason], None],
        *,
        next_chunk: int = 0,
    ) -> None:
        self.signals = Signals()
        """What the last tick read."""
        self._session = setup.session
        self._registry = setup.registry
        self._turn = turn
        self._journal = journal
        self._stop = stop
        """Called if the turn is stopped, or was taken over by another process."""
        self._is_lost = False
        self._written = len(journal.lines) if next_chunk else 0
        self._next_chunk = next_chunk
        self._unconfirmed: Chunk | None = None
        self._wake = asyncio.Event()
        self._is_ended = False
        self._failing = False
        self._flushing = asyncio.Lock()
        self._written_at = turn.since
        self._task = asyncio.create_task(self._tick_until_ended(), name="keeper")

    async def checkpoint(self) -> None:
        """Append everything: tools are about to run. Raises `TurnLost` and, after a lease, `RegistryUnavailable`."""
        give_up_at = time.monotonic() + self._session.settings.lease_seconds
        while True:
            try:
                await self._flush()
                break
            except RegistryUnavailable as exc:
                self._note(exc)
                if time.monotonic() >= give_up_at:
                    raise
                await asyncio.sleep(min(1.0, self._session.settings.tick_seconds))
        if self._is_lost:
            raise TurnLost("another process has taken over the turn")

    def flush_now(self) -> None:
        """Append everything now, without waiting for it."""
        self._wake.set()

    async def finish(self, seconds: float) -> None:
        """Append what is left and stop. Takes at most so many seconds and never raises."""
        self._is_ended = True
        self._wake.set()
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(self._task, return_exceptions=True)
                await self._flush()
        except Exception as exc:  # the turn is over either way
            logger.warning("end of the journal not written", extra={"cause": _cause(exc)})

    def abandon(self) -> None:
        """Stop at once. After a lease the turn counts as dead, and another process continues it."""
        self._task.cancel()

    async def is_stopped(self) -> bool:
        """Whether the turn was stopped since the last tick. Asked before it waits: nobody reads the signal then."""
        with suppress(RegistryUnavailable):
            await self._poll()
        return self.signals.stop

    async def _tick_until_ended(self) -> None:
        tick = self._session.settings.tick_seconds
        while not self._is_ended:
            try:
                async with asyncio.timeout(tick):
                    await self._wake.wait()
            except TimeoutError:
                work = [self._flush(), self._poll()]
            else:
                self._wake.clear()
                work = [] if self._is_ended else [self._flush()]
            failures = await asyncio.gather(*work, return_exceptions=True)
            self._note(next((failure for failure in failures if failure is not None), None))

    async def _poll(self) -> None:
        """Read the turn's signals."""
        if self._is_lost:
            return
        self.signals = await self._registry.signals(self._session.key, self._turn.journal)
        if self.signals.stop:
            self._stop("cancelled")

    async def _flush(self) -> None:
        """Append all new lines, or a heartbeat if there were none for a third of a lease.

        If a write's outcome is unknown, it is repeated with identical bytes: a follower may already have read it.
        """
        session, journal = self._session, self._journal
        lease, tick = session.settings.lease_seconds, session.settings.tick_seconds
        pause = timedelta(seconds=lease / 3 - min(tick, lease / 6))
        async with self._flushing:
            end = len(journal.lines)
            while not self._is_lost and (self._written < end or session.now() - self._written_at > pause):
                lines = _fitting(journal.lines[self._written : end])
                new = Chunk(self._next_chunk, self._turn.run[:SHORT_RUN], session.now(), b"\n".join(lines))
                self._unconfirmed = chunk = self._unconfirmed or new
                if not await self._registry.append(session.key, self._turn.journal, chunk):
                    self._is_lost = True
                    self._stop("lost")
                    return
                self._unconfirmed = None
                self._next_chunk += 1
                self._written += chunk.lines.count(b"\n") + bool(chunk.lines)
                self._written_at = chunk.at

    def _note(self, failure: BaseException | None) -> None:
        if failure is not None and not self._failing:
            level = logging.ERROR if isinstance(failure, RegistryMisconfigured) else logging.WARNING
            logger.log(level, "turn registry failing: no stop, no resume, no tools", extra={"cause": _cause(failure)})
        self._failing = failure is not None


def _fitting(lines: list[bytes]) -> list[bytes]:
    """Take as many lines as fit into one chunk. A line is never split; the recorder keeps each small enough."""
    size = 0
    for count, line in enumerate(lines):
        size += len(line) + 1
        if size > MAX_CHUNK_BYTES and count:
            return lines[:count]
    return lines


def _cause(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"
