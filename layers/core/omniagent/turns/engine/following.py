"""Follows a turn through its journal, whoever runs it. If its process dies, the follower takes the turn over."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from omniagent.ai.result import AnswerSource, RunResult, StreamPosition
from omniagent.errors import NotFound, OmniAgentError, RegistryUnavailable, TooManyReaders, TooManyTurns, TurnInProgress
from omniagent.messages import Part, StopReason
from omniagent.protocol import sse
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.turns.engine.run import KEEP_ALIVE_SECONDS
from omniagent.turns.journal.readers import (
    LOST,
    JournalReader,
    RestOfJournal,
    count_events,
    is_handed_over,
    is_start,
    lines_of,
)
from omniagent.turns.journal.replay import (
    ReplayedAnswer,
    base_of,
    frames_before,
    missing_frames,
    replay_of,
    start_of,
)
from omniagent.turns.registry import Chunk
from omniagent.turns.setup import TimeLimit, TurnSetup
from omniagent.turns.watch.takeover import go_on, take_up

logger = logging.getLogger(__name__)

FOLLOW_SECONDS = 120.0
"""How long a request follows a running turn. Its stream then ends without `finish`, and the client resumes."""
READER_GRACE_SECONDS = 10.0
"""How long a reader counts beyond its own time if its process died before it left."""
REPLAY_SECONDS = 10.0
"""How long after its end an answer can still be resumed."""
HAND_OVER_POLL_SECONDS = 0.1
"""Poll interval while another process is about to go on with the turn."""


@dataclass(slots=True, eq=False)
class ReaderSeat:
    """The place of one request among the readers of its user."""

    setup: TurnSetup
    _id: str = ""

    async def take(self, seconds: float) -> None:
        """Count a reader that stays at most this long, unless it is counted. Raises `TooManyReaders`."""
        if self._id:
            return
        session, self._id = self.setup.session, new_id()
        count = await self.setup.registry.count_reader(session.user_id, self._id, seconds + READER_GRACE_SECONDS)
        if count > session.settings.max_readers_per_user:
            await self.leave()
            raise TooManyReaders

    async def leave(self) -> None:
        """Remove the reader."""
        reader, self._id = self._id, ""
        if reader:
            with suppress(RegistryUnavailable):  # it counts until it expires
                await self.setup.registry.count_reader(self.setup.session.user_id, reader, 0)


@dataclass(slots=True, eq=False)
class FollowedAnswer:
    """The answer of a running turn, from its first event to its end.

    A follower holds a process, so readers are counted. When its time is over, its stream ends without `finish`, and the
    client resumes.
    """

    setup: TurnSetup
    turn: LiveTurn
    limit: TimeLimit
    seat: ReaderSeat
    run: AnswerSource | None = None
    """The turn itself, if this process has taken it over."""
    seen: int | None = None
    """How many events of the journal the reader has seen before. None: it is sent the whole answer."""
    _base: Sequence[Part] = ()
    """What a turn had shown before it waited."""
    _prefix: bytes = b""
    """The frames of it that this client needs."""
    _until: float = 0.0

    @property
    def message_id(self) -> str:
        return self.turn.id

    @property
    def journal_id(self) -> str:
        """Empty if the stream begins with what is not in the journal: a position in it is none in the journal."""
        return "" if self._prefix else self.turn.journal

    async def opened(self) -> "FollowedAnswer | None":
        """Count this reader. None if the turn has ended. Raises `TooManyReaders`."""
        if self.turn.is_continued and self.turn.run:  # it waited, and has not ended since
            base = await self.setup.session.node(self.message_id)
            if base is None or base.status != "waiting":
                return None
            self.begin_with(base, frames_before(base))
        self._until = min(self.limit.stop_at, time.monotonic() + FOLLOW_SECONDS)
        if self.run is None:
            await self.seat.take(max(0.0, self._until - time.monotonic()))
        return self

    def begin_with(self, answer: SessionMessage, frames: bytes) -> None:
        """Begin with frames of an answer that waited. The journal has only what followed."""
        self._base, self._prefix = base_of(answer.parts), sse.encode(start_of(answer)) + frames

    def begin_after(self, seen: int) -> None:
        """Begin after so many events of the journal."""
        self.seen, self._prefix = seen, b""

    async def result(self) -> RunResult:
        ended = False
        async for frames in self.frames():
            ended = frames.endswith(sse.DONE)
        if not ended:
            raise TurnInProgress("The answer is still being written. Send the same request again.")
        answer = await self.setup.session.node(self.message_id)
        if answer is None:
            raise NotFound
        return RunResult.of(self.setup.session.session_id, answer)

    async def ended(self) -> None:
        """Remove this reader, and wait for the turn if it was taken over here."""
        await self.seat.leave()
        if self.run is not None:
            await self.run.ended()

    def stop(self, reason: StopReason) -> None:
        """Stop the turn if it was taken over here. A turn elsewhere continues."""
        if self.run is not None:
            self.run.stop(reason)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the turn's frames from the first one, until the end of the answer or of this reader's time."""
        settings = self.setup.session.settings
        # A journal that is silent for longer has missed a heartbeat: the session is asked.
        silence = settings.lease_seconds / 3 + 2 * settings.tick_seconds
        reader: JournalReader | RestOfJournal = JournalReader(holds_back=True, skips_start=bool(self._prefix))
        if self.seen is not None:
            reader = RestOfJournal(self.seen)
        last: Chunk | None = None
        heard_at = shown_at = time.monotonic()
        is_running = True
        try:
            yield self._prefix or sse.KEEP_ALIVE  # the message is durable: the status line need not wait
            while True:
                chunks = await self._read(last.number if last is not None else -1)
                if chunks or last is None:  # a chunk without lines is a sign of life
                    last, heard_at = (chunks[-1], time.monotonic()) if chunks else (None, heard_at)
                    if frames := reader.take(lines_of(chunks)):
                        shown_at = heard_at
                        yield frames
                if reader.has_ended:
                    return
                if not is_running:  # these were its last ones
                    yield await self._rest(reader)
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
            await self.seat.leave()

    async def _read(self, after: int) -> list[Chunk]:
        try:
            return await self.setup.registry.read(self.setup.session.key, self.turn.journal, after)
        except RegistryUnavailable as exc:  # the session knows whether the turn has ended
            logger.warning("journal not read", extra={"cause": str(exc)})
            return []

    async def _is_running(self, last: Chunk | None) -> bool:
        """Whether the turn goes on. If its process died, this one takes it over."""
        head = await self.setup.session.head()
        turn = head.running if head is not None else None
        if head is None or turn is None or turn.journal != self.turn.journal:
            return False
        if self.run is None and self.setup.is_dead(turn, last):
            try:
                self.run = await go_on(self.setup, self.limit, head)
            except OmniAgentError as exc:
                logger.warning("dead turn not taken over", extra={"cause": f"{type(exc).__name__}: {exc}"})
        return True

    async def _rest(self, reader: JournalReader | RestOfJournal) -> bytes:
        """Return the rest of the stored answer of a turn whose journal has no end."""
        if isinstance(reader, RestOfJournal) and (reader.unmatched or not self.turn.run):
            return LOST  # the journal is gone, or the turn that wrote it has ended without a word
        answer = await self.setup.session.node(self.message_id)
        if not self._prefix and not any(map(is_start, reader.lines)):
            return replay_of(answer) if answer is not None else sse.DONE
        return missing_frames(reader.lines, answer, self._base)


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
        run = await go_on(setup, limit, head)
        turn = turn if run is None else run.turn
    return await FollowedAnswer(setup, turn, limit, ReaderSeat(setup), run).opened()


async def resumed(
    setup: TurnSetup, head: SessionHead, limit: TimeLimit, after: StreamPosition | None
) -> AnswerSource | None:
    """Return what a page that comes back reads. See `Runner.resume`."""
    if head.running is None and head.queue:
        with suppress(TooManyTurns):  # it stays in line
            if (begun := await take_up(setup, limit)) is not None:
                return begun
        if (fresh := await setup.session.head()) is None:
            return None
        head = fresh
    if after is not None:
        return await _rest_of(setup, head, limit, after)
    return await follow(setup, head, limit) or await just_ended(setup.session, head)


async def just_ended(session: SessionManager, head: SessionHead) -> AnswerSource | None:
    """Return the latest answer as it is stored, if it has just ended."""
    if head.running is not None or head.changed_at is None:
        return None
    is_recent = (session.now() - head.changed_at).total_seconds() < REPLAY_SECONDS
    answer = await session.node(head.leaf.node) if is_recent else None
    return ReplayedAnswer(session.session_id, answer) if answer is not None and answer.role == "assistant" else None


async def _rest_of(
    setup: TurnSetup, head: SessionHead, limit: TimeLimit, position: StreamPosition
) -> FollowedAnswer | None:
    """Return the rest of an answer whose reader has seen its beginning. None if nothing is left of it."""
    session, turn, seen, journal = setup.session, head.running, position.seen, position.journal
    is_running = turn is not None and journal in ("", turn.journal)
    if seen is None:
        return None if is_running else await follow(setup, head, limit)
    answer = await follow(setup, head, limit) if is_running else None
    if answer is not None:
        turn = answer.turn
    else:  # that of this journal, or the latest, which no process runs
        ended = (await session.node(journal) if journal else None) or await session.node(head.leaf.node)
        if ended is None or ended.role != "assistant":
            return None
        turn = LiveTurn(ended.id, ended.turn_number, "", journal or ended.id, "", session.now(), ended.parent)
    if seen < 0 or answer is None:
        lines = lines_of(await setup.registry.read(session.key, turn.journal))
        count = count_events(lines)
        # The session says that a turn has ended before the end of its journal is written.
        if answer is None and sse.DONE_LINE in lines and seen >= count:
            return None
        seen = max(0, count + seen) if seen < 0 else seen
    answer = answer or await FollowedAnswer(setup, turn, limit, ReaderSeat(setup)).opened()
    if answer is not None:
        answer.begin_after(seen)
    return answer
