"""From a message to its answer: read the session, decide, carry the decision out. Every refusal comes from here."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from omniagent.ai.result import AnswerSource
from omniagent.errors import InvalidRequest, TooManyTurns, TurnInProgress
from omniagent.session.live import LiveTurn, SessionHead, SessionState
from omniagent.session.query import Query
from omniagent.turns import decisions, state_events
from omniagent.turns import state as states
from omniagent.turns.engine.following import ReaderSeat, follow
from omniagent.turns.engine.turn import begin
from omniagent.turns.journal.replay import ReplayedAnswer
from omniagent.turns.setup import TimeLimit, TurnSetup, call_back
from omniagent.turns.watch.takeover import stop_session

INTERRUPT_SECONDS = 30.0
"""How long a regeneration waits for the turn that it interrupts."""
UNLIMITED_SECONDS = 3600.0
"""How long a waiting request without a deadline counts as a reader."""
NOT_A_MESSAGE = "Only a new message can be answered in the background."


@dataclass(frozen=True, slots=True)
class Submission:
    """Opens the answer to one message: of a new turn, a running turn, or one that has ended."""

    setup: TurnSetup
    query: Query
    limit: TimeLimit

    async def open(self) -> AnswerSource:
        """Return the answer to read. Raises a `RequestError`, or the error that makes the session unavailable."""
        while True:
            state, decision = await self._decided()
            with suppress(states.Moved):
                if (source := await self._carried_out(state, decision)) is not None:
                    return source

    async def accept(self) -> None:
        """Put the message in line, for another process to answer it later. Raises a `RequestError` if it is refused."""
        setup = self.setup
        if self.query.regenerate or not self.query.text:
            raise InvalidRequest(NOT_A_MESSAGE)
        while True:
            state, decision = await self._decided(background=True)
            if isinstance(decision, decisions.Refuse):
                raise decision.error
            if not isinstance(decision, decisions.GetInLine):
                break  # it is in line, being answered, or answered
            busy = [turn for _, turn in await setup.session.busy_sessions() if turn is None or turn.until is None]
            if len(busy) >= setup.session.settings.max_readers_per_user:
                raise TooManyTurns
            await setup.meter.admit()
            with suppress(states.Moved):
                await self._enqueue(state.head, decision)
                break
        await call_back(setup.hooks.on_work)

    async def _carried_out(self, state: SessionState, decision: decisions.Decision) -> AnswerSource | None:
        """Do what was decided. None if the session has moved on, so it is decided again."""
        setup, head = self.setup, state.head
        match decision:
            case decisions.Refuse(error):
                raise error
            case decisions.Replay(answer):
                return ReplayedAnswer(setup.session.session_id, answer)
            case decisions.Run():
                await setup.meter.admit()
                return await begin(setup, state, decision, self.limit)
            case decisions.GoOn(is_own=False):
                await self._finish(head)
            case decisions.Follow() | decisions.GoOn():
                return await follow(setup, head, self.limit, is_dead=isinstance(decision, decisions.GoOn))
            case decisions.Interrupt() if head.turn is not None:
                await self._interrupt(head.turn)
            case decisions.GetInLine() | decisions.WaitInLine():
                return await self._in_line(head, decision)
        return None

    async def _in_line(self, head: SessionHead, decision: decisions.GetInLine | decisions.WaitInLine) -> AnswerSource:
        """Wait in line. A request too many is refused before its message is stored."""
        from omniagent.turns.engine.queued import QueuedAnswer  # needed only for a message in line

        if isinstance(decision, decisions.GetInLine):
            await self.setup.meter.admit()
        seat = ReaderSeat(self.setup)
        await seat.take(min(UNLIMITED_SECONDS, self.limit.time_left()))
        try:
            if isinstance(decision, decisions.GetInLine):
                await self._enqueue(head, decision)
            elif head.queue[0] is decision.message:  # its request may have died before the signal
                await self._signal(head)
        except BaseException:
            await seat.leave()
            raise
        return QueuedAnswer(self.setup, self.query, decision.message.node, self.limit, seat)

    async def _finish(self, head: SessionHead) -> None:
        """Finish the turn of another message, whose process died: only one turn runs at a time."""
        if self.limit.time_left() <= 0:
            raise TurnInProgress(retry_after=1.0)
        if (answer := await follow(self.setup, head, self.limit, is_dead=True)) is not None:
            await answer.ended()

    async def _interrupt(self, turn: LiveTurn) -> None:
        """Stop the running turn for a regeneration. Its message is already stored, so it does not get in line."""
        patience = min(INTERRUPT_SECONDS, self.limit.stop_at - self.limit.started_at)
        if time.monotonic() - self.limit.started_at > patience:
            raise TurnInProgress
        await stop_session(self.setup, turn.id)
        await asyncio.sleep(self.setup.session.settings.tick_seconds)

    async def _decided(self, *, background: bool = False) -> tuple[SessionState, decisions.Decision]:
        """Read the session and decide, after a look at the running turn's journal if there is one."""
        setup = self.setup
        state = await setup.session.load(self.query)
        if setup.agent_name is not None:
            state.head.check_agent(setup.agent_name)
            state = replace(state, head=replace(state.head, agent=setup.agent_name))
        turn = state.head.running
        decision = states.decide(
            state,
            self.query,
            now=setup.session.now(),
            dead=turn is not None and not await setup.is_alive(turn),
            background=background,
            limit=setup.session.settings.max_queued_messages,
        )
        return state, decision

    async def _enqueue(self, head: SessionHead, decision: decisions.GetInLine) -> None:
        message, closes = decision.message, decision.closes
        event = state_events.Close(closes, message) if closes is not None else state_events.Enqueue(message)
        await self._signal(await self.setup.apply(head, event))

    async def _signal(self, head: SessionHead) -> None:
        """Tell the running turn of a message in line that steers or interrupts it."""
        if head.running is not None and self.query.busy in ("steer", "interrupt"):
            stops = self.query.busy == "interrupt"
            await self.setup.registry.signal(self.setup.session.key, head.running.journal, stop=stops, mail=not stops)
