"""`Keeper`: keeps one turn. Once per tick it appends to the turn's journal and reads its signals."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from omniagent.errors import RegistryMisconfigured, RegistryUnavailable, TurnLost
from omniagent.session.live import LiveTurn, QueuedMessage, SessionHead
from omniagent.turns.journal.live_journal import LiveJournal
from omniagent.turns.registry import MAX_CHUNK_BYTES, SHORT_RUN, Chunk, Signals
from omniagent.turns.setup import TurnSetup
from omniagent.turns.state import Join

logger = logging.getLogger(__name__)
STORE_SECONDS = 0.1
"""An answer that is stored within this time needs no chunk of its own."""


class Keeper:
    """Owns the journal of one run.

    A tick's exceptions are logged, and the next tick retries. If the registry fails, the turn loses stop and resume and
    starts no tools, but it still ends in order.
    """

    def __init__(self, setup: TurnSetup, head: SessionHead, journal: LiveJournal, *, next_chunk: int = 0) -> None:
        if head.turn is None:
            raise ValueError("only a running turn is kept")
        self.head = head
        """The session after this run's last change of it."""
        self.turn: LiveTurn = head.turn
        self.lost = False
        self._session = setup.session
        self._setup = setup
        self._registry = setup.registry
        self._on_stop: Callable[[], None] = lambda: None
        self._on_lost: Callable[[], None] = lambda: None
        self._journal = journal
        self._written = len(journal.lines) if next_chunk else 0
        self._next_chunk = next_chunk
        self._unconfirmed: Chunk | None = None
        self._unconfirmed_lines = 0
        self._signals = Signals()
        # A message that steers may have got in line while the turn waited: nobody signals it again.
        self._joined_at = Signals(mail=-any(message.steers(head) for message in head.queue))
        self._wake = asyncio.Event()
        self._flush_timer: asyncio.TimerHandle | None = None
        self._is_ended = False
        self._failing = False
        self._flushing = asyncio.Lock()
        self._written_at = self.turn.since
        self._task = asyncio.create_task(self._tick_until_ended(), name="keeper")

    def watch(self, on_stop: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """Call back if the turn is stopped, or was taken over by another process."""
        self._on_stop, self._on_lost = on_stop, on_lost

    async def checkpoint(self) -> None:
        """Append everything: tools are about to run. Raises `TurnLost` and, after a lease, `RegistryUnavailable`."""
        give_up_at = time.monotonic() + self._setup.settings.lease_seconds
        while True:
            try:
                await self._flush()
                break
            except RegistryUnavailable as exc:
                self._note(exc)
                if time.monotonic() >= give_up_at:
                    raise
                await asyncio.sleep(min(1.0, self._setup.settings.tick_seconds))
        if self.lost:
            raise TurnLost("another process has taken over the turn")

    def flush_now(self) -> None:
        """Append everything now, without waiting for it."""
        self._wake.set()

    def flush_soon(self) -> None:
        """Append everything while the answer is being stored, unless that finishes at once."""
        self._flush_timer = asyncio.get_running_loop().call_later(STORE_SECONDS, self._wake.set)

    async def finish(self, seconds: float) -> None:
        """Append what is left and stop. Takes at most so many seconds and never raises."""
        self._is_ended = True
        self._wake.set()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(self._task, return_exceptions=True)
                await self._flush()
        except Exception as exc:  # the turn is over either way
            logger.warning("end of the journal not written", extra={"cause": _cause(exc)})

    async def is_stopped(self) -> bool:
        """Whether the turn was stopped since the last tick. Asked before it waits: nobody reads the signal then."""
        with suppress(RegistryUnavailable):
            self._signals = await self._registry.signals(self._session.key, self.turn.journal)
        return self._signals.stop

    async def join(self, known: Collection[str]) -> Sequence[QueuedMessage]:
        """Return the messages that steer this turn, without those that are known already.

        Those that are in line become part of the turn first, so that a successor finds them.
        """
        if self._signals.mail != self._joined_at.mail:
            self._joined_at = self._signals
            await self._take_mail()
        return [message for message in self.turn.joined if message.id not in known]

    async def _take_mail(self) -> None:
        while (head := await self._session.head()) is not None:
            steering = tuple(each for each in head.queue if each.steers(head) and not each.is_stopped)
            if not steering:
                return
            if (after := await self._setup.apply(head, Join(self.turn.run, steering))) is not None:
                self.head = after
                self.turn = replace(self.turn, joined=(*self.turn.joined, *steering))
                return

    async def _tick_until_ended(self) -> None:
        tick = self._setup.settings.tick_seconds
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
        if self.lost:
            return
        self._signals = await self._registry.signals(self._session.key, self.turn.journal)
        if self._signals.stop:
            self._on_stop()

    async def _flush(self) -> None:
        """Append all new lines, or a heartbeat if there were none for a third of a lease.

        If a write's outcome is unknown, it is repeated with identical bytes: a follower may already have read it.
        """
        async with self._flushing:
            if self.lost:
                return
            end = len(self._journal.lines)
            while self._written < end:
                await self._append(self._journal.lines[self._written : end])
            if self._session.now() - self._written_at > self._heartbeat:
                await self._append([])

    @property
    def _heartbeat(self) -> timedelta:
        lease, tick = self._setup.settings.lease_seconds, self._setup.settings.tick_seconds
        return timedelta(seconds=lease / 3 - min(tick, lease / 6))

    async def _append(self, lines: list[bytes]) -> None:
        if self._unconfirmed is None:
            fitting = _fitting(lines)
            self._unconfirmed_lines = len(fitting)
            self._unconfirmed = Chunk(
                self._next_chunk, self.turn.run[:SHORT_RUN], self._session.now(), b"\n".join(fitting)
            )
        if not await self._registry.append(self._session.key, self.turn.journal, self._unconfirmed):
            self.lost = True
            self._written = len(self._journal.lines)
            self._on_lost()
            return
        self._next_chunk += 1
        self._written += self._unconfirmed_lines
        self._written_at = self._unconfirmed.at
        self._unconfirmed = None

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
