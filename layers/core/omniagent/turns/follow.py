"""Follows a turn that another request or process runs, through its chunk log."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from omniagent.ai.result import RunResult
from omniagent.errors import NotFound, RegistryUnavailable, TooManyReaders, TurnInProgress
from omniagent.messages import StopReason
from omniagent.protocol import events, sse
from omniagent.session.manager import SessionMessage, message_id_of, new_id
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.event_log import KEEP_ALIVE_SECONDS
from omniagent.turns.lease import Claim, Reader
from omniagent.turns.repair import is_unbegun, settle
from omniagent.turns.replay import FollowedLog, ReplayedAnswer, missing_frames, record_frames
from omniagent.turns.setup import HAND_OVER_POLL_SECONDS, HAND_OVER_SECONDS, TurnSetup

logger = logging.getLogger(__name__)

MAX_READERS_PER_SESSION = 10
"""Maximum number of requests that may follow one session's turn at once."""
READER_GRACE_SECONDS = 10.0
"""How long a reader counts beyond its own time if its process died before it left."""


class ReaderSeat:
    """The place of one request among the readers of its session and its user."""

    def __init__(self, setup: TurnSetup) -> None:
        self._session = setup.session
        self._registry = setup.registry
        self._reader: Reader | None = None

    async def take(self, seconds: float) -> None:
        """Count a reader that stays at most this long. Raises `TooManyReaders`."""
        session, settings = self._session, self._session.settings
        self._reader = Reader(new_id(), session.user_id, session.key, seconds + READER_GRACE_SECONDS)
        try:
            own, *others = await self._registry.enter(self._reader)
        except BaseException:  # it may be counted although the answer was lost
            await self.leave()
            raise
        of_session = sum(other == own for other in others)
        if len(others) >= settings.max_readers_per_user or of_session >= MAX_READERS_PER_SESSION:
            await self.leave()
            raise TooManyReaders

    async def leave(self) -> None:
        """Remove the reader."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        try:
            await self._registry.leave(reader)
        except RegistryUnavailable as exc:  # it counts until it expires
            logger.warning("reader not removed", extra={"cause": str(exc)})


class FollowedAnswer:
    """The answer of a turn that runs elsewhere, from its first event to its end.

    A follower holds a process, so readers are counted. When its time is over, its stream ends without `finish`, and the
    client resumes.
    """

    def __init__(self, setup: TurnSetup, claim: Claim, limit: TimeLimit, *, resets: bool = False) -> None:
        self.message_id = message_id_of(claim.turn_id)
        self._setup = setup
        self._session = session = setup.session
        self._registry = setup.registry
        self._claim = claim
        self._resets = resets
        self._lease: tuple[str, float] | None = None
        """The owner of the claim when it was last seen, and the end of its lease."""
        self._renewed_by: str | None = None
        """The owner that has renewed it since the previous look."""
        self._beginning: list[tuple[int, bytes]] = []
        """The chunks that `begun` has read. The first reader gets them without another read."""
        self._until = min(limit.stop_at, time.monotonic() + session.settings.follow_seconds)
        self._seat = ReaderSeat(setup)

    @classmethod
    async def begun(
        cls,
        setup: TurnSetup,
        claim: Claim,
        limit: TimeLimit,
        *,
        resets: bool = False,
        is_counted: bool = False,
    ) -> "FollowedAnswer | None":
        """Wait until the turn has begun and its message is durable. None if it ended before it began.

        Raises `TooManyReaders`.
        """
        followed = cls(setup, claim, limit, resets=resets)
        async with aclosing(followed._all_frames(math.inf)) as frames:
            if await anext(frames, None) is None:
                return None
        if not is_counted:
            await followed._seat.take(max(0.0, followed._until - time.monotonic()))
        return followed

    async def result(self) -> RunResult:
        frames = b"".join([frames async for frames in self.frames()])
        if not frames.endswith(sse.DONE):
            raise TurnInProgress("The answer is still being written. Send the same request again.")
        answer = await self._stored(frames)
        if answer is None:
            raise NotFound
        return RunResult.of(self._session.session_id, answer)

    async def ended(self) -> None:
        """Remove this reader. The turn runs elsewhere."""
        await self._seat.leave()

    def stop(self, reason: StopReason) -> None:
        """Does nothing: the turn runs elsewhere."""

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the turn's frames from the first one, until the end of the answer or of this reader's time."""
        try:
            async with aclosing(self._all_frames(self._until)) as frames:
                async for each in frames:
                    yield each
        finally:
            await self.ended()

    async def _all_frames(self, until: float) -> AsyncGenerator[bytes, None]:
        """Yield the frames of the turn. One that never began yields nothing.

        If the registry is unreachable for less than a lease, the reader only waits.
        """
        log = FollowedLog(resets=self._resets)
        number, idle, is_alive = -1, 0.0, True
        pace = _Pace(self._session.settings.tick_seconds)
        patience = _Patience(self._session.settings.lease_seconds)
        while True:
            was_alive, was_read_before = is_alive, number < 0 and bool(self._beginning)
            chunks, is_alive = await self._look(number, patience)
            if frames := log.take([chunk for _, chunk in chunks]) or (
                log.trust() if self._renewed_by == log.owner else b""
            ):
                yield frames
            if chunks:
                number, idle = chunks[-1][0], 0.0
            if log.has_ended:
                return
            if not was_alive:  # the last chunk precedes the release, so a released turn's log was read once more
                break
            poll_seconds = 0.0 if was_read_before else pace.seconds(is_hurried=log.waits_for_process)
            if not chunks:
                idle += poll_seconds
            if log.sent and idle >= KEEP_ALIVE_SECONDS:
                idle = 0.0
                yield sse.KEEP_ALIVE
            if time.monotonic() >= until:
                return
            if is_alive:
                await asyncio.sleep(poll_seconds)
        if log.sent:
            yield await self._ending(b"".join(log.sent))

    async def _look(self, number: int, patience: "_Patience") -> tuple[list[tuple[int, bytes]], bool]:
        """Return the chunks after a number, and whether more may come."""
        if number < 0 and self._beginning:
            beginning, self._beginning = self._beginning, []
            return beginning, True
        try:
            chunks = await self._registry.read(self._claim.session, self._claim.turn_id, number)
            is_alive = bool(chunks) or await self._is_alive()
        except RegistryUnavailable:
            if number < 0:
                raise
            if not patience.is_over():
                return [], True
            if await self._is_being_answered():
                raise
            return [], False
        if number < 0:
            self._beginning = chunks
        patience.renew()
        return chunks, is_alive

    async def _is_alive(self) -> bool:
        running = await self._registry.running(self._claim.session)
        if running is None or running.claim.turn_id != self._claim.turn_id:
            return False
        before, self._lease = self._lease, (running.claim.owner, running.lease_until)
        is_renewed = before is not None and before[0] == running.claim.owner and before != self._lease
        self._renewed_by = running.claim.owner if is_renewed else None
        if running.alive or not running.is_looked_after(self._setup.hooks.grace_seconds):
            return running.alive
        # Do not wait for a turn that never began: its question is asked again as another turn, with another log.
        return not (running.claim.question and is_unbegun(running, await self._session.head()))

    async def _is_being_answered(self) -> bool:
        """Check in the store whether the turn has ended, if the registry cannot tell."""
        head = await self._session.head()
        return head is not None and head.active_turn_id == self._claim.turn_id

    async def _ending(self, sent: bytes) -> bytes:
        """Repair a turn that could not end its stream, and return the rest of its stored answer."""
        await settle(self._session, self._registry, self._setup.hooks)
        answer = await self._stored(sent)
        has_started = next(sse.decode(sent), None) is not None  # a regeneration withholds its start
        if answer is None:
            return _interrupted(sent) if has_started else sse.DONE
        if has_started and answer.id == self.message_id:
            return missing_frames(sent, answer)
        closing: list[events.StreamEvent] = []
        record_frames(sent, closing.append).close()
        replayed = [frames async for frames in ReplayedAnswer(self._session.session_id, answer).frames()]
        return b"".join(map(sse.encode, closing)) + b"".join(replayed)

    async def _stored(self, sent: bytes) -> SessionMessage | None:
        """Return the turn's current answer: its own, the previous one if it was kept, or a later one."""
        match next(sse.decode(sent), None):
            case {"messageMetadata": {"turnNumber": int(number)}}:
                return await self._session.answer(number)
        state = await self._session.load(self.message_id)
        return state.earlier or state.answer  # a regeneration that has shown nothing


class _Pace:
    """How often the log is read: once per tick, and more often while another process is about to continue the turn."""

    def __init__(self, tick_seconds: float) -> None:
        self._tick_seconds = tick_seconds
        self._hurried_since: float | None = None

    def seconds(self, *, is_hurried: bool) -> float:
        """Return the pause before the next read."""
        if not is_hurried:
            self._hurried_since = None
            return self._tick_seconds
        now = time.monotonic()
        self._hurried_since = now if self._hurried_since is None else self._hurried_since
        is_late = now - self._hurried_since >= HAND_OVER_SECONDS
        return self._tick_seconds if is_late else min(self._tick_seconds, HAND_OVER_POLL_SECONDS)


class _Patience:
    """How long a registry may fail before a reader gives up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._failing_since: float | None = None

    def is_over(self) -> bool:
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        return now - self._failing_since >= self._seconds

    def renew(self) -> None:
        self._failing_since = None


def _interrupted(sent: bytes) -> bytes:
    closing: list[events.StreamEvent] = []
    record_frames(sent, closing.append).close()
    closing += [events.Abort("interrupted"), events.Finish("other", {"status": "interrupted"})]
    return b"".join(map(sse.encode, closing)) + sse.DONE
