"""From a message to its answer: read the session, decide, carry the decision out. Every refusal comes from here."""

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from omniagent.ai.result import AnswerSource
from omniagent.errors import InvalidRequest, TooManyTurns, TurnInProgress
from omniagent.session.live import LiveTurn, QueuedMessage, SessionHead, SessionMessage, SessionState
from omniagent.session.query import Query
from omniagent.settings import Busy
from omniagent.turns import state as states
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.engine.beginning import begin
from omniagent.turns.engine.following import follow
from omniagent.turns.hooks import call_back
from omniagent.turns.journal.replay import ReplayedAnswer
from omniagent.turns.setup import TurnSetup
from omniagent.turns.watch.stopping import stop_session

if TYPE_CHECKING:
    from omniagent.turns.engine.queued import QueuedAnswer

INTERRUPT_SECONDS = 30.0
"""How long a regeneration waits for the turn that it interrupts."""
NOT_A_MESSAGE = "Only a new message can be answered in the background."


class Submission:
    """Opens the answer to one message: of a new turn, a running turn, or one that has ended."""

    def __init__(self, setup: TurnSetup, query: Query, limit: TimeLimit) -> None:
        self._setup = setup
        self._session = setup.session
        self._query = query
        self._limit = limit

    async def open(self) -> AnswerSource:
        """Return the answer to read. Raises a `RequestError`, or the error that makes the session unavailable."""
        with self._setup.bound():
            while True:
                state = self._setup.with_agent(await self._session.load(self._query))
                decision = await decided(self._setup, state, self._query)
                with suppress(states.Moved):
                    if (source := await self._carried_out(state, decision)) is not None:
                        return source

    async def accept(self) -> None:
        """Put the message in line, for another process to answer it later. Raises a `RequestError` if it is refused."""
        setup, query = self._setup, self._query
        if query.regenerate or not query.text:
            raise InvalidRequest(NOT_A_MESSAGE)
        is_accepted = False
        while not is_accepted:
            state = setup.with_agent(await self._session.load(query))
            decision = await decided(setup, state, query, background=True)
            if isinstance(decision, states.Refuse):
                raise decision.error
            if not isinstance(decision, states.GetInLine):
                break  # it is in line, being answered, or answered
            busy = [turn for _, turn in await self._session.busy_sessions() if turn is None or turn.until is None]
            if len(busy) >= setup.settings.max_readers_per_user:
                raise TooManyTurns
            await setup.meter.admit()
            with suppress(states.Moved):
                is_accepted = await queue(setup, state.head, decision.message, decision.closes)
        await call_back(setup.hooks.on_work)

    async def _carried_out(self, state: SessionState, decision: states.Decision) -> AnswerSource | None:
        """Do what was decided. None if the session has moved on, so it is decided again."""
        match decision:
            case states.Refuse(error):
                raise error
            case states.Replay(answer):
                return ReplayedAnswer(self._session.session_id, answer)
            case states.Run():
                await self._setup.meter.admit()
                return await begin(self._setup, state, decision, self._limit)
            case states.GoOn(is_own=False):
                await self._finish(state.head)
            case states.Follow() | states.GoOn():
                is_dead = isinstance(decision, states.GoOn)
                return await follow(self._setup, state.head, self._limit, is_dead=is_dead)
            case states.Interrupt() if state.head.turn is not None:
                await self._interrupt(state.head.turn)
            case states.GetInLine(message, closes):
                return await self._queued(state.head, message, closes)
            case states.WaitInLine():
                message = next(each for each in state.head.queue if each.id == self._query.message_id)
                if state.head.queue[0] is message:  # its request may have died before the signal
                    await signal(self._setup, state.head, self._query.busy)
                return (await self._seated(message)).start()
        return None

    async def _interrupt(self, turn: LiveTurn) -> None:
        """Stop the running turn for a regeneration. Its message is already stored, so it does not get in line."""
        patience = min(INTERRUPT_SECONDS, self._limit.stop_at - self._limit.started_at)
        if time.monotonic() - self._limit.started_at > patience:
            raise TurnInProgress
        await stop_session(self._setup, turn.id)
        await asyncio.sleep(self._setup.settings.tick_seconds)

    async def _finish(self, head: SessionHead) -> None:
        """Finish the turn of another message, whose process died: only one turn runs at a time."""
        if self._limit.time_left() <= 0:
            raise TurnInProgress(retry_after=1.0)
        answer = await follow(self._setup, head, self._limit, is_dead=True)
        if answer is not None:
            await answer.ended()

    async def _queued(
        self, head: SessionHead, message: QueuedMessage, closes: SessionMessage | None
    ) -> AnswerSource | None:
        """Get in line and wait there. A request too many is refused before its message is stored."""
        await self._setup.meter.admit()
        answer, is_queued = await self._seated(message), False
        try:
            is_queued = await queue(self._setup, head, message, closes)
        finally:
            if not is_queued:
                await answer.leave()
        return answer.start() if is_queued else None

    async def _seated(self, message: QueuedMessage) -> "QueuedAnswer":
        from omniagent.turns.engine.queued import QueuedAnswer  # needed only for a message in line

        return await QueuedAnswer(self._setup, self._query, message.node, self._limit).seated()


async def decided(setup: TurnSetup, state: SessionState, query: Query, *, background: bool = False) -> states.Decision:
    """Decide, after a look at the running turn's journal if there is one."""
    turn = state.head.running
    return states.decide(
        state,
        query,
        now=setup.session.now(),
        dead=turn is not None and not await setup.is_alive(turn),
        background=background,
        limit=setup.settings.max_queued_messages,
    )


async def queue(setup: TurnSetup, head: SessionHead, message: QueuedMessage, closes: SessionMessage | None) -> bool:
    """Put a message in line. False if the session has moved on."""
    event = states.Close(closes, message) if closes is not None else states.Enqueue(message)
    after = await setup.apply(head, event)
    if after is not None:
        await signal(setup, after, message.busy)
    return after is not None


async def signal(setup: TurnSetup, head: SessionHead, busy: Busy | None) -> None:
    """Tell the running turn of a message in line that steers or interrupts it."""
    if head.running is not None and busy in ("steer", "interrupt"):
        stops = busy == "interrupt"
        await setup.registry.signal(setup.session.key, head.running.journal, stop=stops, mail=not stops)
