"""Follows a turn through its journal, whoever runs it. If its process dies, the follower takes the turn over."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from omniagent.ai.result import AnswerSource, RunResult, StreamPosition
from omniagent.errors import NotFound, OmniAgentError, RegistryUnavailable, TooManyReaders, TooManyTurns, TurnInProgress
from omniagent.messages import Part, StopReason
from omniagent.protocol import sse
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.journal.live_journal import KEEP_ALIVE_SECONDS
from omniagent.turns.journal.readers import LOST, FollowedLog, RestOfLog, count_events
from omniagent.turns.journal.records import is_handed_over, is_start
from omniagent.turns.journal.replay import ReplayedAnswer, interrupted_frames, missing_frames, replay_of, start_of
from omniagent.turns.registry import Chunk
from omniagent.turns.setup import TurnSetup

logger = logging.getLogger(__name__)

FOLLOW_SECONDS = 120.0
"""How long a request follows a running turn. Its stream then ends without `finish`, and the client resumes."""
READER_GRACE_SECONDS = 10.0
"""How long a reader counts beyond its own time if its process died before it left."""
REPLAY_SECONDS = 10.0
"""How long after its end an answer can still be resumed."""
HAND_OVER_POLL_SECONDS = 0.1
"""Poll interval while another process is about to go on with the turn."""


class ReaderSeat:
    """The place of one request among the readers of its user."""

    def __init__(self, setup: TurnSetup) -> None:
        self._setup = setup
        self._id = ""

    async def take(self, seconds: float) -> None:
        """Count a reader that stays at most this long. Raises `TooManyReaders`."""
        session, self._id = self._setup.session, new_id()
        seconds += READER_GRACE_SECONDS
        try:
            count = await self._setup.registry.count_reader(session.user_id, self._id, seconds)
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
            await self._setup.registry.count_reader(self._setup.session.user_id, reader, 0)
        except RegistryUnavailable as exc:  # it counts until it expires
            logger.warning("reader not removed", extra={"cause": str(exc)})


class FollowedAnswer:
    """The answer of a running turn, from its first event to its end.

    A follower holds a process, so readers are counted. When its time is over, its stream ends without `finish`, and the
    client resumes. `run` is the turn itself, if this process has taken it over.
    """

    def __init__(self, setup: TurnSetup, turn: LiveTurn, limit: TimeLimit, run: AnswerSource | None = None) -> None:
        self.message_id = turn.id
        self.journal_id = turn.journal
        self.seen: int | None = None
        """How many events of the journal the reader has seen before. None: it is sent the whole answer."""
        self._setup = setup
        self._session = setup.session
        self._turn = turn
        self._run = run
        self._limit = limit
        self._base: Sequence[Part] = ()
        """What a turn had shown before it waited."""
        self._prefix = b""
        """The frames of it that this client needs."""
        self._until = min(limit.stop_at, time.monotonic() + FOLLOW_SECONDS)
        self._seat = ReaderSeat(setup)

    async def opened(self, *, is_counted: bool = False) -> "FollowedAnswer | None":
        """Count this reader, unless its request is counted already. None if the turn has ended. Raises
        `TooManyReaders`.
        """
        if self._turn.is_continued and self._turn.run:  # it waited, and has not ended since
            from omniagent.turns.engine.waiting import frames_before  # needed only for a turn that waited

            base = await self._stored()
            if base is None or base.status != "waiting":
                return None
            self.begin_with(base, frames_before(base))
        if not is_counted and self._run is None:
            await self._seat.take(max(0.0, self._until - time.monotonic()))
        return self

    def begin_with(self, answer: SessionMessage, frames: bytes) -> None:
        """Begin with frames of an answer that waited. The journal has only what followed."""
        from omniagent.turns.engine.waiting import base_of

        self._base = base_of(answer)
        self._prefix = sse.encode(start_of(answer)) + frames
        self.journal_id = ""  # a position in this stream is none in the journal

    def begin_after(self, seen: int) -> "FollowedAnswer":
        """Begin after so many events of the journal."""
        self.seen, self.journal_id, self._prefix = seen, self._turn.journal, b""
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
        settings = self._session.settings
        # A journal that is silent for longer has missed a heartbeat: the session is asked.
        silence = settings.lease_seconds / 3 + 2 * settings.tick_seconds
        log = FollowedLog(skips_start=bool(self._prefix)) if self.seen is None else RestOfLog(self.seen)
        last: Chunk | None = None
        heard_at = shown_at = time.monotonic()
        is_running = True
        try:
            yield self._prefix or sse.KEEP_ALIVE  # the message is durable: the status line need not wait
            while True:
                if chunks := await self._read(last.number if last is not None else -1):
                    last, heard_at = chunks[-1], time.monotonic()
                if frames := log.take(chunks):
                    shown_at = heard_at
                    yield frames
                if log.has_ended:
                    return
                if not is_running:  # these were its last ones
                    yield await self._rest(log)
                    return
                is_leaving = last is not None and is_handed_over(last.lines)
                if is_leaving or time.monotonic() - heard_at > silence:
                    is_running = await self._is_running(last)
                if is_running and time.monotonic() >= self._until:
                    return
                if time.monotonic() - shown_at >= KEEP_ALIVE_SECONDS:
                    shown_at = time.monotonic()
                    yield sse.KEEP_ALIVE
                if is_running:
                    await asyncio.sleep(HAND_OVER_POLL_SECONDS if is_leaving else settings.tick_seconds)
        finally:
            await self._seat.leave()

    async def _read(self, after: int) -> list[Chunk]:
        try:
            return await self._setup.registry.read(self._session.key, self._turn.journal, after)
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
            from omniagent.turns.watch.takeover import go_on  # needed only after a crash

            try:
                self._run = await go_on(self._setup, self._limit, head)
            except OmniAgentError as exc:
                logger.warning("dead turn not taken over", extra={"cause": f"{type(exc).__name__}: {exc}"})
        return True

    async def _rest(self, log: FollowedLog | RestOfLog) -> bytes:
        """Return the rest of the stored answer of a turn whose journal has no end."""
        if isinstance(log, RestOfLog) and (log.unmatched or not self._turn.run):
            return LOST  # the journal is gone, or the turn that wrote it has ended without a word
        sent, answer = log.lines, await self._stored()
        has_started = bool(self._prefix) or any(map(is_start, sent))
        if answer is None:
            return interrupted_frames(sent, self._base) if has_started else sse.DONE
        return missing_frames(sent, answer, self._base) if has_started else replay_of(answer)

    async def _stored(self) -> SessionMessage | None:
        return await self._session.node(self.message_id)


async def follow(
    setup: TurnSetup, head: SessionHead, limit: TimeLimit, *, is_dead: bool | None = None
) -> FollowedAnswer | None:
    """Return the answer of the session's running turn, after taking it over if its process died. None if none runs.

    `is_dead` is what the journal was found to say. None: it is read.
    """
    turn, run = head.running, None
    if turn is None:
        return None
    if is_dead or (is_dead is None and not await setup.is_alive(turn)):
        from omniagent.turns.watch.takeover import go_on  # needed only after a crash

        run = await go_on(setup, limit, head)
        turn = turn if run is None else run.turn
    return await FollowedAnswer(setup, turn, limit, run).opened()


async def resumed(
    setup: TurnSetup, head: SessionHead, limit: TimeLimit, after: StreamPosition | None
) -> AnswerSource | None:
    """Return what a page that comes back reads. See `Runner.resume`."""
    if head.running is None and head.queue:
        from omniagent.turns.watch.takeover import take_up  # needed only for messages in line

        with suppress(TooManyTurns):  # it stays in line
            if (begun := await take_up(setup, limit)) is not None:
                return begun
        fresh = await setup.session.head()
        if fresh is None:
            return None
        head = fresh
    if after is not None:
        return await rest_of(setup, head, limit, after)
    return await follow(setup, head, limit) or await just_ended(setup.session, head)


async def just_ended(session: SessionManager, head: SessionHead) -> AnswerSource | None:
    """Return the latest answer as it is stored, if it has just ended."""
    answer = await session.node(head.leaf.node) if head.ended_within(REPLAY_SECONDS) else None
    return ReplayedAnswer(session.session_id, answer) if answer is not None and answer.role == "assistant" else None


async def rest_of(
    setup: TurnSetup, head: SessionHead, limit: TimeLimit, position: StreamPosition
) -> FollowedAnswer | None:
    """Return the rest of an answer whose reader has seen its beginning. None if nothing is left of it."""
    turn = head.running
    is_running = turn is not None and position.journal in ("", turn.journal)
    if position.seen is None:
        return None if is_running else await follow(setup, head, limit)
    answer = await follow(setup, head, limit) if is_running else None
    if answer is None:
        turn = await _ended_turn(setup, head, position.journal)
    if turn is None:
        return None
    seen = position.seen
    if seen < 0 or answer is None:
        chunks = await setup.registry.read(setup.session.key, turn.journal)
        events = count_events(chunks)
        # The session says that a turn has ended before the end of its journal is written.
        has_end = any(chunk.lines.endswith(sse.DONE_LINE) for chunk in chunks)
        if answer is None and has_end and seen >= events:
            return None
        seen = max(0, events + seen) if seen < 0 else seen
    answer = answer or await FollowedAnswer(setup, turn, limit).opened()
    return answer and answer.begin_after(seen)


async def _ended_turn(setup: TurnSetup, head: SessionHead, journal: str) -> LiveTurn | None:
    """Return the turn of an answer that has ended: the one with this journal, or the latest. No process runs it."""
    session = setup.session
    answer = (await session.node(journal) if journal else None) or await session.node(head.leaf.node)
    if answer is None or answer.role != "assistant":
        return None
    return LiveTurn(answer.id, answer.turn_number, "", journal or answer.id, "", session.now())
