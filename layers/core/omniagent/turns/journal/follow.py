"""Follows a turn through its journal, whoever runs it. If its process dies, the follower takes the turn over."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from omniagent.ai.result import AnswerSource, RunResult
from omniagent.errors import NotFound, OmniAgentError, RegistryUnavailable, TooManyReaders, TurnInProgress
from omniagent.messages import Part, StopReason
from omniagent.protocol import sse
from omniagent.protocol.events import ResetStep
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.journal.live_journal import KEEP_ALIVE_SECONDS
from omniagent.turns.journal.records import (
    START_STEP,
    is_handed_over,
    is_shown,
    is_start,
    lines_of,
    may_be_reset,
    open_step,
    surviving,
    unread,
    withdraws,
)
from omniagent.turns.journal.replay import interrupted_frames, missing_frames, replay_of, start_of
from omniagent.turns.registry import Chunk
from omniagent.turns.setup import TurnSetup

logger = logging.getLogger(__name__)

FOLLOW_SECONDS = 120.0
"""How long a request follows a running turn. Its stream then ends without `finish`, and the client resumes."""
READER_GRACE_SECONDS = 10.0
"""How long a reader counts beyond its own time if its process died before it left."""
HAND_OVER_POLL_SECONDS = 0.1
"""Poll interval while another process is about to go on with the turn."""

GoOn = Callable[[SessionHead], Awaitable[AnswerSource | None]]
"""Takes over the session's turn, whose process died. None if another process does."""


class ReaderSeat:
    """The place of one request among the readers of its user."""

    def __init__(self, setup: TurnSetup) -> None:
        self._session = setup.session
        self._registry = setup.registry
        self._id = ""

    async def take(self, seconds: float) -> None:
        """Count a reader that stays at most this long. Raises `TooManyReaders`."""
        session = self._session
        self._id = new_id()
        try:
            count = await self._registry.count_reader(session.user_id, self._id, seconds + READER_GRACE_SECONDS)
        except BaseException:  # it may be counted although the answer was lost
            await self.leave()
            raise
        if count > session.settings.max_readers_per_user:
            await self.leave()
            raise TooManyReaders

    async def leave(self) -> None:
        """Remove the reader."""
        reader, self._id = self._id, ""
        if not reader:
            return
        try:
            await self._registry.count_reader(self._session.user_id, reader, 0)
        except RegistryUnavailable as exc:  # it counts until it expires
            logger.warning("reader not removed", extra={"cause": str(exc)})


class FollowedLog:
    """Decides what a reader of a journal is sent.

    An unfinished step is held back until its process is known to be alive. If the process died, another one generates
    the step again, and a reader that has not seen it sees one undisturbed answer. A reader that has seen what is
    withdrawn gets `reset-step`. If that cannot withdraw it, its stream ends and it resumes.
    """

    def __init__(self, *, skips_start: bool = False) -> None:
        self.has_ended = False
        self._lines: list[bytes] = []
        self._held: list[bytes] = []
        self._skips_start = skips_start
        self._skips_step = False
        """A reset keeps the step's start, so that of the process that takes over is not sent."""
        self._is_first = True

    @property
    def lines(self) -> list[bytes]:
        """What the client has been sent and still displays, with the records between."""
        return [*self._lines, START_STEP] if self._skips_step else self._lines

    def take(self, chunks: Sequence[Chunk]) -> bytes:
        """Take the next chunks and return the bytes to send. A chunk without lines is a sign of life."""
        if not chunks and not self._is_first:
            return b""
        lines = lines_of(chunks)
        if self._skips_start:
            self._skips_start = not any(map(is_start, lines))
            lines = [line for line in lines if not is_start(line)]
        is_first, self._is_first = self._is_first, False
        lines, self._held = [*self._held, *lines], []
        reset = b""
        if any(map(withdraws, lines)):
            lines, reset = self._without_withdrawn(lines)
        if is_first and not (lines and lines[-1] == sse.DONE_LINE):
            begun = open_step(lines)
            self._held = [] if begun is None else lines[begun:]
            lines = lines[:begun]
        return reset + self._send(lines)

    def _without_withdrawn(self, lines: Sequence[bytes]) -> tuple[list[bytes], bytes]:
        """Return what is left to send of the lines, and what withdraws what was sent of them."""
        kept = surviving([*self._lines, *lines])
        rest, withdrawn = unread(self._lines, kept)
        self._lines = kept[: len(kept) - len(rest)]
        if not withdrawn:
            return rest, b""
        if not may_be_reset(withdrawn):
            self.has_ended = True
            return [], b""
        self._skips_step = self._skips_step or START_STEP in withdrawn
        return rest, sse.encode(ResetStep())

    def _send(self, lines: list[bytes]) -> bytes:
        if self.has_ended:
            return b""
        self._lines += lines
        self.has_ended = bool(lines) and lines[-1] == sse.DONE_LINE
        shown = [line for line in lines if is_shown(line)]
        if self._skips_step and START_STEP in shown:
            shown.remove(START_STEP)
            self._skips_step = False
        return sse.frames_of(shown)


class FollowedAnswer:
    """The answer of a running turn, from its first event to its end.

    A follower holds a process, so readers are counted. When its time is over, its stream ends without `finish`, and the
    client resumes. `run` is the turn itself, if this process has taken it over.
    """

    def __init__(
        self,
        setup: TurnSetup,
        turn: LiveTurn,
        limit: TimeLimit,
        go_on: GoOn,
        *,
        run: AnswerSource | None = None,
    ) -> None:
        self.message_id = turn.id
        self._setup = setup
        self._session = setup.session
        self._registry = setup.registry
        self._turn = turn
        self._go_on = go_on
        self._run = run
        self._base: Sequence[Part] = ()
        """What a turn had shown before it waited."""
        self._prefix = b""
        """The frames of it that this client needs."""
        self._until = min(limit.stop_at, time.monotonic() + FOLLOW_SECONDS)
        self._seat = ReaderSeat(setup)

    def begin_with(self, answer: SessionMessage, base: Sequence[Part], frames: bytes) -> None:
        """Begin with frames of an answer that waited. The journal has only what followed."""
        self._base = base
        self._prefix = sse.encode(start_of(answer)) + frames

    async def opened(self) -> "FollowedAnswer":
        """Count this reader. Raises `TooManyReaders`."""
        await self._seat.take(max(0.0, self._until - time.monotonic()))
        return self

    async def result(self) -> RunResult:
        ended = False
        async for frames in self.frames():
            ended = frames.endswith(sse.DONE)
        if not ended:
            raise TurnInProgress("The answer is still being written. Send the same request again.")
        answer = await self._stored()
        if answer is None:
            raise NotFound
        return RunResult.of(self._session.session_id, answer)

    async def ended(self) -> None:
        """Remove this reader, and wait for the turn if it was taken over here."""
        await self._seat.leave()
        if self._run is not None:
            await self._run.ended()

    def stop(self, reason: StopReason) -> None:
        """Stop the turn if it was taken over here. A turn elsewhere continues."""
        if self._run is not None:
            self._run.stop(reason)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the turn's frames from the first one, until the end of the answer or of this reader's time."""
        try:
            async with aclosing(self._all_frames()) as frames:
                async for each in frames:
                    yield each
        finally:
            await self._seat.leave()

    async def _all_frames(self) -> AsyncGenerator[bytes, None]:
        log = FollowedLog(skips_start=bool(self._prefix))
        yield self._prefix or sse.KEEP_ALIVE  # the message is durable: the status line need not wait
        last: Chunk | None = None
        heard_at = shown_at = time.monotonic()
        while True:
            chunks = await self._read(last.number if last is not None else -1)
            if chunks:
                last, heard_at = chunks[-1], time.monotonic()
            if frames := log.take(chunks):
                shown_at = heard_at
                yield frames
            if log.has_ended:
                return
            is_leaving = last is not None and is_handed_over(last.lines)
            is_silent = is_leaving or time.monotonic() - heard_at > self._silence
            if is_silent and not await self._is_running(last):
                break
            if time.monotonic() >= self._until:
                return
            if time.monotonic() - shown_at >= KEEP_ALIVE_SECONDS:
                shown_at = time.monotonic()
                yield sse.KEEP_ALIVE
            await asyncio.sleep(HAND_OVER_POLL_SECONDS if is_leaving else self._session.settings.tick_seconds)
        number = last.number if last is not None else -1
        if rest := log.take(await self._read(number)):
            yield rest
        if not log.has_ended:
            yield await self._ending(log.lines)

    @property
    def _silence(self) -> float:
        """How long a journal may be silent before the session is asked: a heartbeat was missed."""
        settings = self._session.settings
        return settings.lease_seconds / 3 + 2 * settings.tick_seconds

    async def _read(self, after: int) -> list[Chunk]:
        try:
            return await self._registry.read(self._session.key, self._turn.journal, after)
        except RegistryUnavailable as exc:  # the session knows whether the turn has ended
            logger.warning("journal not read", extra={"cause": str(exc)})
            return []

    async def _is_running(self, last: Chunk | None) -> bool:
        """Whether the turn goes on. If its process died, this one takes it over."""
        head = await self._session.head()
        turn = head.running if head is not None else None
        if head is None or turn is None or turn.journal != self._turn.journal:
            return False
        if self._run is None and self._setup.is_dead(turn, last):
            try:
                self._run = await self._go_on(head)
            except OmniAgentError as exc:
                logger.warning("dead turn not taken over", extra={"cause": f"{type(exc).__name__}: {exc}"})
        return True

    async def _ending(self, sent: Sequence[bytes]) -> bytes:
        """Return the rest of the stored answer of a turn whose journal has no end."""
        answer = await self._stored()
        has_started = bool(self._prefix) or any(map(is_start, sent))
        if answer is None:
            return interrupted_frames(sent, self._base) if has_started else sse.DONE
        return missing_frames(sent, answer, self._base) if has_started else replay_of(answer)

    async def _stored(self) -> SessionMessage | None:
        return await self._session.node(self.message_id)
