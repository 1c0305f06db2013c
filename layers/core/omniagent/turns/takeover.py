"""Finds out whether the process of a turn died, takes the turn over, and finishes it."""

import asyncio
import logging
import time
from dataclasses import replace

from omniagent.ai.result import AnswerSource
from omniagent.aio import both
from omniagent.errors import StorageConflict
from omniagent.protocol import sse
from omniagent.session.manager import SessionHead, SessionManager, SessionMessage, message_id_of, new_id
from omniagent.tracing import SpanKind, bind_context, trace_operation
from omniagent.tracing.attributes import AGENT_NAME, TURN_NUMBER
from omniagent.turns.assignment import Assignment
from omniagent.turns.claiming import taken
from omniagent.turns.dead_turn import DeadTurn
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.keeper import LeaseKeeper
from omniagent.turns.lease import ANSWER, Claim, Renewal, RunningTurn, TurnRegistry
from omniagent.turns.query import Query
from omniagent.turns.repair import close_dead_turn, is_unbegun, waited_for
from omniagent.turns.replay import TAKEN_OVER
from omniagent.turns.setup import HAND_OVER_POLL_SECONDS, MAX_ATTEMPTS, TurnSetup
from omniagent.turns.turn import Turn
from omniagent.turns.unbegun import ask_again

logger = logging.getLogger(__name__)


async def next_look(
    session: SessionManager, registry: TurnRegistry, turn_id: str, attempt: int, patience_seconds: float = 0.0
) -> float | None:
    """See `TurnOperator.look`."""
    give_up_at = time.monotonic() + patience_seconds
    while (seconds := await _look(session, registry, turn_id, attempt)) and time.monotonic() < give_up_at:  # noqa: ASYNC110
        await asyncio.sleep(HAND_OVER_POLL_SECONDS)
    return seconds


async def _look(session: SessionManager, registry: TurnRegistry, turn_id: str, attempt: int) -> float | None:
    held = await registry.running(session.key)
    is_same = held is not None and held.claim.turn_id == turn_id
    if held is not None and held.alive and (held.claim.is_chore or (is_same and held.claim.attempt <= attempt)):
        return held.lease_left
    head = await session.head()
    if held is not None and held.alive:
        # Before it has begun, its process may die without a watch of its own.
        has_begun = head is not None and head.has_begun(held.claim.turn_id, held.claim.attempt if is_same else 0)
        return None if has_begun else held.lease_left
    if held is not None and is_unbegun(held, head):
        return 0.0
    if held is not None and held.inbox:
        return 0.0 if await waited_for(session, held) is None else None
    return None if head is None or head.active_turn_id is None else 0.0


class Takeover:
    """Continues the turn of one session, if its process died."""

    def __init__(self, setup: TurnSetup, limit: TimeLimit, query: Query | None = None) -> None:
        self._setup = setup
        self._session = setup.session
        self._registry = setup.registry
        self._limit = limit
        self._query = query
        """Only the turn of this message is continued."""

    async def open(self) -> AnswerSource | None:
        """Take over and return the turn. None if there is nothing to continue, or another process does it.

        A turn that cannot be continued is closed as interrupted; one with a pending stop is closed as cancelled. A
        question that was never stored is asked again.
        """
        session = self._session
        with bind_context(session_id=session.session_id, user_id=session.user_id, user_category=session.category):
            head, held = await both(session.head(), self._registry.running(session.key))
            if held is not None and is_unbegun(held, head):
                return await ask_again(self._setup, self._limit, held)
            if head is None or head.active_turn_id is None or (held is not None and held.alive):
                return None
            if held is not None and held.claim.turn_id != head.active_turn_id:
                held = None  # the claim of a process that was repairing it
            is_stopped = held is not None and held.is_stopped
            claim = replace(await self._claim(head.active_turn_id, held), is_stopped=is_stopped)
            if await taken(self._registry, claim) is not None:
                return None
            keeper = self._setup.keeper(claim, self._setup.notice(claim))
            try:
                turn = await self._open_claimed(keeper, is_stopped=is_stopped)
            except BaseException:
                await (keeper.hand_over() if is_stopped else keeper.abandon())
                raise
            if turn is None:
                await keeper.abandon()
            return turn

    async def _claim(self, turn_id: str, held: RunningTurn | None) -> Claim:
        """Return the claim of the dead turn, for this process."""
        if held is not None:
            return replace(held.claim, owner=new_id(), attempt=held.claim.attempt + 1, question=b"")
        dead, message_id = await self._read(turn_id), message_id_of(turn_id)
        claim_id = dead.claim_id or (turn_id if message_id == turn_id else ANSWER + message_id)
        named = frozenset(filter(None, [claim_id.partition(":")[2]]))  # the answer that it continues or regenerates
        return Claim(self._session.key, turn_id, claim_id, named, owner=new_id(), attempt=dead.takeovers + 1)

    async def _open_claimed(self, keeper: LeaseKeeper, *, is_stopped: bool) -> Turn | None:
        claim = keeper.claim
        state, logged = await both(self._session.load(), self._read(claim.turn_id))
        if state.head.active_turn_id != claim.turn_id:
            return None  # it has ended since then
        dead = replace(logged, before=await self._before(claim.turn_id))
        if self._query is not None and not dead.answers(self._query, state):
            return None
        plan, attempt = dead.plan(state, claim.message_id), max(dead.takeovers + 1, claim.attempt)
        deaths = attempt - dead.hand_overs
        if is_stopped or plan is None or not dead.is_readable or deaths > MAX_ATTEMPTS:
            await self._close(state.head, attempt, is_stopped=is_stopped)
            return None
        # It was admitted once, so it continues regardless of the current number of running turns.
        admitted = self._session.admit(self._setup.settings.max_running_turns_per_user, claim.turn_id)
        continued, _ = await both(self._log_takeover(claim, dead, attempt), admitted)
        if continued is None:
            return None
        limit = replace(self._limit, started_at=time.monotonic() - dead.seconds)
        assignment = Assignment(claim.turn_id, plan, state, limit, dead=continued, attempt=attempt)
        return await self._begin(keeper, assignment)

    async def _begin(self, keeper: LeaseKeeper, assignment: Assignment) -> Turn | None:
        attributes = {AGENT_NAME: self._setup.agent.name, TURN_NUMBER: assignment.plan.number}
        span = trace_operation("turn", kind=SpanKind.AGENT, attributes=attributes)
        with span.resumed():
            turn = Turn(self._setup, assignment, keeper, span)
            try:
                await turn.begin()
            except StorageConflict:
                return None  # the turn has ended after all
            finally:
                if not turn.has_begun:
                    span.end()
        details = {"turn_id": turn.message_id, "attempt": assignment.attempt}
        if assignment.dead is not None and assignment.dead.is_handed_over:
            logger.info("turn goes on", extra=details)
        else:
            logger.warning("dead turn continued", extra=details)
        return turn

    async def _log_takeover(self, claim: Claim, dead: DeadTurn, attempt: int) -> DeadTurn | None:
        """Log the takeover. Return the turn as the log then shows it, or None if another process took it over.

        The dead process may still write chunks before this one. Afterwards its writes are fenced off.
        """
        while True:
            note = sse.encode_note({TAKEN_OVER: attempt, "owner": claim.owner})
            if await self._registry.append(claim, dead.next_chunk, note):
                return replace(dead, frames=[*dead.frames, note], next_chunk=dead.next_chunk + 1)
            known = dead.next_chunk
            dead = replace(await self._read(claim.turn_id), before=dead.before)
            if dead.next_chunk <= known or await self._registry.renew(claim) == Renewal.LOST:
                return None

    async def _before(self, turn_id: str) -> SessionMessage | None:
        """Return the waiting answer that a run continues, as it was stored when the run began. None for other turns."""
        message_id = message_id_of(turn_id)
        return None if message_id == turn_id else await self._session.find(message_id)

    async def _read(self, turn_id: str) -> DeadTurn:
        return DeadTurn.read(await self._registry.read(self._session.key, turn_id))

    async def _close(self, head: SessionHead, attempt: int, *, is_stopped: bool = False) -> None:
        if not is_stopped:
            logger.error("dead turn not continued", extra={"turn_id": head.active_turn_id, "attempt": attempt})
        await close_dead_turn(self._session, self._registry, head, is_stopped=is_stopped)
