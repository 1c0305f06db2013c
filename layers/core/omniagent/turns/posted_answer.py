"""`PostedAnswer`: a request that posted a message to a session's inbox waits here for its answer."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from omniagent.ai.result import AnswerSource, RunResult
from omniagent.errors import (
    OmniAgentError,
    RegistryUnavailable,
    SessionErased,
    StorageUnavailable,
    TooManyReaders,
    TooManyTurns,
    TurnInProgress,
)
from omniagent.messages import StopReason
from omniagent.protocol import events, sse
from omniagent.session.manager import SessionHead
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.event_log import KEEP_ALIVE_SECONDS
from omniagent.turns.follow import FollowedAnswer, ReaderSeat
from omniagent.turns.hooks import call_back
from omniagent.turns.inbox import (
    GRACE_TICKS,
    UNLIMITED_SECONDS,
    continue_dead,
    found_with_answer,
    latest_begin,
    open_posted,
)
from omniagent.turns.lease import Claim, InboxMessage, RunningTurn
from omniagent.turns.query import Query
from omniagent.turns.repair import waited_for
from omniagent.turns.replay import ReplayedAnswer
from omniagent.turns.setup import TurnSetup

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 2.0
"""Pause between attempts to begin a turn that the user's limit or an unreachable store prevents."""


class PostedAnswer:
    """The answer to a message of the inbox: of its own turn, or of the turn that it joined.

    A waiting request holds a process, so it counts as a reader. The wait is its own task and continues without a
    reader. When it runs out of time, its stream ends without `finish` and the message stays in the inbox; a retry
    waits again. Behind a turn that waits for a human, that is after FOLLOW_SECONDS: the approval may take a month.
    """

    def __init__(self, setup: TurnSetup, query: Query, limit: TimeLimit) -> None:
        self._setup = setup
        self.settings = setup.settings
        self._session = setup.session
        self._registry = setup.registry
        self._query = query
        self._limit = limit
        self._until = latest_begin(limit)
        self._seat = ReaderSeat(setup)
        self._free_since: float | None = None
        self._held_up_since: float | None = None
        self._continued_from: str | None = None
        self._log_of: str | None = None
        self._read_to = -1
        self._run_for_others: list[AnswerSource] = []
        self._is_stopped = False
        self._task: asyncio.Task[AnswerSource | None] | None = None

    async def joined(self) -> "PostedAnswer":
        """Wait for a message that is already in the inbox."""
        await self._enter()
        return self._start()

    async def known(self, head: SessionHead | None) -> ReplayedAnswer | None:
        """Return the answer of a stored message. Raises `TurnInProgress` if the message may be
        answered again.
        """
        found = await found_with_answer(self._session, self._query.message_id)
        if found is None:
            return None
        message, answer = found
        self._query.check_same(message)
        is_latest = head is None or message.turn_number == head.latest_turn_number
        is_waiting = head is not None and head.waiting_id is not None
        settled = ("complete", "waiting") if is_waiting else ("complete",)
        if answer is None or (is_latest and answer.status not in settled):
            raise TurnInProgress
        return ReplayedAnswer(self._session.session_id, answer)

    async def posted(self, held: RunningTurn, interrupts: str = "") -> "PostedAnswer | None":
        """Post the message to the turn that holds the session, or held it last. None if it no longer does."""
        await self._enter()
        is_posted = False
        query = self._query
        message = InboxMessage(query.message_id, query.text, steers=query.busy == "steer", interrupts=interrupts)
        try:
            await self._setup.meter.admit()
            most = self.settings.max_queued_messages
            is_posted = await self._registry.post(held.claim, message, most, stop=query.busy == "interrupt")
        finally:
            if not is_posted:
                await self._seat.leave()
        if is_posted:  # the turn that holds the session may have no watch, or not begin
            await call_back(self._setup.hooks.on_begin, held.claim.turn_id, held.claim.attempt)
        return self._start() if is_posted else None

    @property
    def message_id(self) -> str:
        """The id of the answer's message. Empty while the message is queued."""
        source = self._source
        return source.message_id if source is not None else ""

    async def frames(self) -> AsyncIterator[bytes]:
        yield sse.KEEP_ALIVE  # the message is durable: the status line need not wait
        task = self._started
        while not task.done():
            await asyncio.wait([task], timeout=KEEP_ALIVE_SECONDS)
            if not task.done():
                yield sse.KEEP_ALIVE
        if task.cancelled():
            return
        exc = task.exception()
        if exc is not None:
            yield sse.encode(events.Error(_public(exc))) + sse.DONE
        elif (source := task.result()) is not None:
            async for frames in source.frames():
                yield frames

    async def result(self) -> RunResult:
        source = await asyncio.shield(self._started)
        if source is None:
            raise TurnInProgress("The message is queued. Send the same request again.")
        return await source.result()

    async def ended(self) -> None:
        """Wait for all work of this process: this message's turn, and the turns run before it."""
        await asyncio.wait([self._started])
        sources = [*self._run_for_others, *([self._source] if self._source is not None else [])]
        await asyncio.gather(*(source.ended() for source in sources))
        await self._seat.leave()

    def stop(self, reason: StopReason) -> None:
        """Stop the turn and keep its text. If it has not begun, the queued message is stopped and the wait ends."""
        self._is_stopped = True
        if self._source is not None:
            self._source.stop(reason)

    def shut_down(self) -> None:
        """Stop waiting. The message stays in the inbox."""
        self._started.cancel()

    @property
    def _started(self) -> "asyncio.Task[AnswerSource | None]":
        if self._task is None:
            raise RuntimeError("the message was not posted")
        return self._task

    @property
    def _source(self) -> AnswerSource | None:
        task = self._started
        if not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    def _start(self) -> "PostedAnswer":
        self._task = asyncio.create_task(self._wait(), name=f"waiting {self._query.message_id}")
        self._session.open_turns.add(self)
        self._task.add_done_callback(lambda _: self._session.open_turns.discard(self))
        return self

    async def _wait(self) -> AnswerSource | None:
        """Wait until there is an answer to read. None on timeout."""
        pause = tick = self.settings.tick_seconds
        while time.monotonic() < self._give_up_at:
            try:
                if self._is_stopped:
                    await self._registry.stop(self._session.key, self._query.message_id)
                    return None
                if (source := await self._look()) is not None:
                    return source
                pause = tick if self._held_up_since is None else GRACE_TICKS * tick
            except (TooManyTurns, TurnInProgress, TooManyReaders, StorageUnavailable, RegistryUnavailable) as exc:
                logger.info("message stays queued", extra={"cause": f"{type(exc).__name__}: {exc}"})
                pause = max(tick, PAUSE_SECONDS)
            await asyncio.sleep(pause)
        return None

    @property
    def _give_up_at(self) -> float:
        if self._held_up_since is None:
            return self._until
        return min(self._until, self._held_up_since + self.settings.follow_seconds)

    async def _look(self) -> AnswerSource | None:
        held = await self._registry.running(self._session.key)
        inbox = held.inbox if held is not None else ()
        place = next((place for place, each in enumerate(inbox) if each.id == self._query.message_id), None)
        if held is not None and held.alive:
            self._free_since = self._held_up_since = None
            if held.claim.message_id == self._query.message_id or (place is not None and await self._has_joined(held)):
                return await self._followed(held.claim)
        if place is None:
            return await self._answered()
        if held is None or held.alive or await self._is_held_up(held, inbox[place]) or not self._may_run(place):
            return None
        if held.claim.token != self._continued_from:
            self._continued_from = held.claim.token  # only once: the next turn closes one that cannot be continued
            if (dead := await continue_dead(self._setup, self._limit, held)) is not None:
                self._run_for_others.append(dead)
                return None
        if place == 0:
            return await open_posted(self._setup, held, self._limit)
        await self._run_for_another(held)
        return None

    async def _is_held_up(self, held: RunningTurn, own: InboxMessage) -> bool:
        """Whether the previous turn waits for a human. A stopped message does not wait for that."""
        if await waited_for(self._setup.session, held) is None:
            self._held_up_since = None
            return False
        self._held_up_since = self._held_up_since or time.monotonic()
        self._is_stopped = self._is_stopped or own.stopped
        return True

    async def _answered(self) -> AnswerSource:
        """Return the stored answer of a message that has left the inbox."""
        message = await self._session.find(self._query.message_id)
        if message is None:
            raise SessionErased
        answer = message if message.role == "assistant" else await self._session.answer(message.turn_number)
        if answer is None:
            raise SessionErased
        return ReplayedAnswer(self._session.session_id, answer)

    async def _has_joined(self, held: RunningTurn) -> bool:
        """Read the running turn's log until the message has joined it."""
        if self._log_of != held.claim.turn_id:
            self._log_of, self._read_to = held.claim.turn_id, -1
        chunks = await self._registry.read(self._session.key, held.claim.turn_id, self._read_to)
        for number, frames in chunks:
            self._read_to = number
            if any(message_id == self._query.message_id for message_id in sse.steering_ids(frames)):
                return True
        return False

    def _may_run(self, place: int) -> bool:
        """Whether this message is first, or the requests before it did not run: each place adds GRACE_TICKS."""
        now = time.monotonic()
        self._free_since = self._free_since or now
        if now - self._free_since < place * GRACE_TICKS * self.settings.tick_seconds:
            return False
        self._free_since = None
        return True

    async def _run_for_another(self, held: RunningTurn) -> None:
        """Run the first queued message's turn, because its own process does not."""
        try:
            source = await open_posted(self._setup, held, self._limit)
        except OmniAgentError as exc:
            if isinstance(exc, TooManyTurns | TurnInProgress | StorageUnavailable | RegistryUnavailable):
                raise
            logger.warning("message of another not answered", extra={"cause": f"{type(exc).__name__}: {exc}"})
            return
        if source is not None:
            self._run_for_others.append(source)

    async def _followed(self, claim: Claim) -> FollowedAnswer | None:
        """Follow a turn once it has begun. This reader is already counted."""
        return await FollowedAnswer.begun(self._setup, claim, self._limit, is_counted=True)

    async def _enter(self) -> None:
        await self._seat.take(min(UNLIMITED_SECONDS, self._limit.time_left()))


def _public(exc: BaseException) -> str:
    if isinstance(exc, OmniAgentError):
        return exc.public
    logger.error("message not answered", exc_info=exc)
    return OmniAgentError.public
