"""`QueuedAnswer`: a request whose message is in line. It is a reader that has not begun."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from omniagent.ai.result import AnswerSource, RunResult
from omniagent.errors import (
    OmniAgentError,
    RegistryUnavailable,
    SessionErased,
    StorageUnavailable,
    TooManyTurns,
    TurnInProgress,
)
from omniagent.messages import StopReason
from omniagent.protocol import events, sse
from omniagent.session.query import Query
from omniagent.turns.engine import following
from omniagent.turns.engine.following import FollowedAnswer, ReaderSeat
from omniagent.turns.engine.run import KEEP_ALIVE_SECONDS
from omniagent.turns.engine.turn import begin_queued
from omniagent.turns.journal.replay import ReplayedAnswer
from omniagent.turns.setup import TimeLimit, TurnSetup
from omniagent.turns.state import Moved, is_over
from omniagent.turns.watch.takeover import stop_session, take_up

logger = logging.getLogger(__name__)

LOOK_TICKS = 5
"""How often a request in line checks on those before it: their processes may be gone."""
PAUSE_SECONDS = 2.0
"""Pause between attempts to begin a turn that the user's limit or an unreachable store prevents."""


class QueuedAnswer:
    """The answer to a message in line: of its own turn, or of the turn that it joined.

    A waiting request holds a process, so it counts as a reader. The wait is its own task and continues without a
    reader. When it runs out of time, its stream ends without `finish` and the message stays in line; a retry waits
    again. Behind a turn that waits for a human, that is after FOLLOW_SECONDS: the approval may take a month.
    """

    message_id = journal_id = ""
    """Those of the answer. Empty while the message is in line."""

    def __init__(self, setup: TurnSetup, query: Query, node: str, limit: TimeLimit, seat: ReaderSeat) -> None:
        self._setup = setup
        self._session = setup.session
        self._query = query
        self._node = node
        self._limit = limit
        self._seat = seat
        self._until = limit.started_at + (limit.stop_at - limit.started_at) * 3 / 4
        """The latest time to begin the turn. The rest of the deadline belongs to the turn itself."""
        self._held_up_until = math.inf
        self._looked_at = time.monotonic()
        self._source: AnswerSource | None = None
        self._run_for_others: list[AnswerSource] = []
        self._is_stopped = False
        self._task = asyncio.create_task(self._wait(), name=f"waiting {query.message_id}")
        self._session.open_turns.add(self)
        self._task.add_done_callback(lambda _: self._session.open_turns.discard(self))

    async def frames(self) -> AsyncIterator[bytes]:
        yield sse.KEEP_ALIVE  # the message is durable: the status line need not wait
        task = self._task
        while not task.done():
            await asyncio.wait([task], timeout=KEEP_ALIVE_SECONDS)
            if not task.done():
                yield sse.KEEP_ALIVE
        if task.cancelled():
            return
        if (exc := task.exception()) is not None:
            if not isinstance(exc, OmniAgentError):
                logger.error("message not answered", exc_info=exc)
            yield sse.encode(events.Error(getattr(exc, "public", OmniAgentError.public))) + sse.DONE
        elif self._source is not None:
            async for frames in self._source.frames():
                yield frames

    async def result(self) -> RunResult:
        await asyncio.shield(self._task)
        if self._source is None:
            raise TurnInProgress("The message is queued. Send the same request again.")
        return await self._source.result()

    async def ended(self) -> None:
        """Wait for all work of this process: this message's turn, and the turns run before it."""
        await asyncio.wait([self._task])
        own = [self._source] if self._source is not None else []
        await asyncio.gather(*(source.ended() for source in [*self._run_for_others, *own]))
        await self._seat.leave()

    def stop(self, reason: StopReason) -> None:
        """Stop the turn and keep its text. If it has not begun, the message in line is stopped and the wait ends."""
        self._is_stopped = True
        if self._source is not None:
            self._source.stop(reason)

    def shut_down(self) -> None:
        """Stop waiting. The message stays in line."""
        self._task.cancel()

    async def _wait(self) -> None:
        """Wait until there is an answer to read, or the time is over."""
        tick = self._setup.session.settings.tick_seconds
        while time.monotonic() < min(self._until, self._held_up_until):
            pause = tick
            try:
                if self._is_stopped:
                    await stop_session(self._setup, self._query.message_id)
                    return
                if (source := await self._look()) is not None:
                    self._source, self.message_id, self.journal_id = source, source.message_id, source.journal_id
                    return
                pause = tick if math.isinf(self._held_up_until) else 4 * tick
            except Moved:
                pass  # look again
            except (TooManyTurns, StorageUnavailable, RegistryUnavailable) as exc:
                logger.info("message stays in line", extra={"cause": f"{type(exc).__name__}: {exc}"})
                pause = max(tick, PAUSE_SECONDS)
            await asyncio.sleep(pause)

    async def _look(self) -> AnswerSource | None:
        head, message_id = await self._session.head(), self._query.message_id
        if head is None:
            raise SessionErased
        turn = head.running
        if turn is not None and (turn.question == self._node or message_id in [each.id for each in turn.joined]):
            return await FollowedAnswer(self._setup, turn, self._limit, self._seat).opened()
        place = next((place for place, each in enumerate(head.queue) if each.node == self._node), None)
        if place is None:
            return await self._answered()
        if head.waiting is not None and not is_over(head, self._session.now()):
            self._held_up_until = min(self._held_up_until, time.monotonic() + following.FOLLOW_SECONDS)
            if head.queue[place].is_stopped:
                self._until = -math.inf  # it is stored when the turn before it ends
            return None
        self._held_up_until = math.inf
        if head.turn is None and place == 0:
            return await begin_queued(self._setup, head, self._limit)
        if time.monotonic() - self._looked_at > LOOK_TICKS * self._setup.session.settings.tick_seconds:
            self._looked_at = time.monotonic()
            if (other := await take_up(self._setup, replace(self._limit, started_at=time.monotonic()))) is not None:
                self._run_for_others.append(other)
        return None

    async def _answered(self) -> AnswerSource:
        """Return the stored answer of a message that has left the line. Another branch may be active already."""
        own = (await self._session.children(self._node)).get(self._node, ())
        if own:
            answer = await self._session.node(own[-1].node)
        else:  # it has joined an answer
            state = await self._session.load(self._query)
            answer = state.answer if state.earlier is not None else None
        if answer is None:
            raise SessionErased
        return ReplayedAnswer(self._session.session_id, answer)
