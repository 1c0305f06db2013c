"""From a message to its turn: claim, join, read, admit, plan, begin. Every refusal comes from here."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from omniagent.ai.result import AnswerSource
from omniagent.errors import (
    InvalidRequest,
    NotFound,
    NotRegenerable,
    SessionErased,
    StorageConflict,
    TooManyTurns,
    TurnInProgress,
)
from omniagent.session.manager import SessionMessage, SessionState, new_id, session_of_slot, slot_of
from omniagent.settings import Settings
from omniagent.tracing import SpanKind, bind_context, trace_operation
from omniagent.tracing.attributes import AGENT_NAME, TURN_NUMBER
from omniagent.turns.follow import FollowedAnswer
from omniagent.turns.keeper import LeaseKeeper, requested
from omniagent.turns.lease import ERASE, REPAIR, Claim, RunningTurn
from omniagent.turns.repair import close_dead_turn, living
from omniagent.turns.replay import ReplayedAnswer
from omniagent.turns.setup import Assignment, Query, TimeLimit, TurnPlan, TurnSetup, both
from omniagent.turns.turn import Turn

if TYPE_CHECKING:
    from omniagent.turns.ledger import TurnBudget

logger = logging.getLogger(__name__)

REPAIR_POLL_SECONDS = 0.1


class Opening:
    """Opens the answer to one message: of a turn that starts now, that runs already, or that has ended."""

    def __init__(self, setup: TurnSetup, query: Query, limit: TimeLimit) -> None:
        self._setup = setup
        self._session = setup.session
        self._registry = setup.registry
        self._query = query
        self._limit = limit
        with self._bound():
            self._span = trace_operation("turn", kind=SpanKind.AGENT, attributes={AGENT_NAME: setup.agent.name})
        self._is_handed_over = False
        self._budget: TurnBudget | None = None

    async def open(self) -> AnswerSource:
        """Return the answer to read. Raises a `RequestError`, or what makes the session unavailable."""
        span = self._span
        try:
            with self._bound(), span.resumed():
                return await self._open()
        except BaseException as exc:
            span.error(exc)
            raise
        finally:
            if not self._is_handed_over:
                span.end()

    def _bound(self) -> AbstractContextManager[None]:
        session = self._session
        return bind_context(session_id=session.session_id, user_id=session.user_id, user_category=session.category)

    async def _open(self) -> AnswerSource:
        claim = Claim(self._session.key, new_id(), self._query.claim_id, self._query.aliases)
        while (held := await requested(self._registry, claim, self._registry.claim(claim))) is not None:
            if (followed := await self._join(held)) is not None:
                return followed
        keeper = LeaseKeeper(self._registry, claim, tick_seconds=self._setup.settings.tick_seconds)
        try:
            answer = await self._open_claimed(keeper)
        except BaseException:
            if not self._is_handed_over:
                await self._abandon(keeper)
            raise
        if not isinstance(answer, Turn):
            await self._abandon(keeper)
        return answer

    async def _open_claimed(self, keeper: LeaseKeeper) -> Turn | ReplayedAnswer:
        settings, query = self._setup.settings, self._query
        limit = settings.max_running_turns_per_user
        turn_id = keeper.claim.turn_id
        if self._setup.account is not None:
            self._budget = self._setup.account.open(turn_id)
        # Slot and tokens are asked for while the session is read. A replay needs none and gives them back.
        holders, state = await both(self._session.admit(limit, turn_id), self._session.load(query.known_id))
        if state.head.active_turn_id is not None:
            await close_dead_turn(self._session, self._registry, state.head, self._setup.ledger)
            state = await self._session.load(query.known_id)
        plan = await self._plan(state)
        if isinstance(plan, SessionMessage):
            return ReplayedAnswer(self._session.session_id, plan)
        await self._ensure_admitted(holders, limit, turn_id)
        if self._budget is not None:
            await self._budget.admitted()
        return await self._begin(keeper, plan, state)

    async def _plan(self, state: SessionState) -> TurnPlan | SessionMessage:
        number = older_turn(self._query, state)
        if number is None:
            return plan_turn(self._query, state, self._setup.settings)
        answer = await self._session.answer(number)
        if answer is None:
            raise NotRegenerable
        return answer

    async def _ensure_admitted(self, holders: Sequence[str], limit: int, turn_id: str) -> None:
        """Refuse a turn too many. Slots of dead turns are given back first: the dead never count."""
        if not holders:
            return
        alive = await living(self._registry, {session_of_slot(slot) for slot in holders})
        stale = [slot for slot in holders if session_of_slot(slot) not in alive]
        if stale:
            logger.warning("slots of dead turns withdrawn", extra={"count": len(stale)})
            await self._session.withdraw(*stale)
        if not stale or await self._session.admit(limit, turn_id):
            raise TooManyTurns

    async def _begin(self, keeper: LeaseKeeper, plan: TurnPlan, state: SessionState) -> Turn:
        self._span.set(TURN_NUMBER, plan.number)
        assignment = Assignment(keeper.claim.turn_id, plan, state, self._limit, self._budget)
        turn = Turn(self._setup, assignment, keeper, self._span)
        try:
            await turn.begin()
        except StorageConflict as exc:
            raise TurnInProgress(retry_after=1.0) from exc
        finally:
            # From its begin on the turn releases the claim, gives back the slot and ends the span itself.
            self._is_handed_over = turn.has_begun
        return turn

    async def _join(self, held: RunningTurn) -> FollowedAnswer | None:
        """Follow the turn that answers this very message. None to try the claim again."""
        claim = held.claim
        if claim.message_id == self._query.claim_id:
            return await FollowedAnswer.begun(self._session, self._registry, claim, self._limit, self._setup.ledger)
        if claim.message_id == ERASE:
            raise SessionErased
        if claim.message_id == REPAIR:
            await asyncio.sleep(REPAIR_POLL_SECONDS)  # a moment, or until the repairer's lease runs out
            return None
        head = await self._session.head()
        if head is not None and head.has_ended(claim.turn_id):
            await self._registry.release(claim)  # its owner could not: the table was slow, or away
            return None
        raise TurnInProgress(retry_after=1.0 if held.stopping else max(1.0, held.lease_left))

    async def _abandon(self, keeper: LeaseKeeper) -> None:
        """Give back the tokens, the slot and the claim of a turn that does not begin."""
        try:
            if self._budget is not None:
                await self._budget.give_back()
            await self._session.withdraw(slot_of(self._session.key, keeper.claim.turn_id))
        except Exception as exc:  # a stale slot is found when somebody needs it
            logger.warning("slot not withdrawn", extra={"cause": f"{type(exc).__name__}: {exc}"})
        finally:
            await asyncio.shield(keeper.finish())


def plan_turn(query: Query, state: SessionState, settings: Settings) -> TurnPlan | SessionMessage:
    """Return the plan, or the stored answer to replay. Raises a `RequestError` when the session cannot serve it."""
    if query.regenerate:
        return _plan_regeneration(query, state, settings)
    earlier = state.earlier
    if earlier is None:
        return _plan_new(query, state, settings)
    if earlier.role != "user":
        raise InvalidRequest("This message id belongs to an answer. Choose another one.")
    if earlier.turn_number < state.head.latest_turn_number:
        raise NotRegenerable  # an older answer is replayed before this is asked
    if state.answer is not None and state.answer.status == "complete":
        return state.answer
    return TurnPlan(earlier.turn_number, earlier.id, earlier.text, again=True, previous=state.answer)


def _plan_new(query: Query, state: SessionState, settings: Settings) -> TurnPlan:
    if state.head.latest_turn_number >= settings.max_turns_per_session:
        raise InvalidRequest("This session has reached its last turn. Start a new one.")
    return TurnPlan(state.head.latest_turn_number + 1, query.message_id, query.text)


def _plan_regeneration(query: Query, state: SessionState, settings: Settings) -> TurnPlan | SessionMessage:
    earlier, question, answer = state.earlier, state.question, state.answer
    if earlier is not None and earlier.turn_number < state.head.latest_turn_number:
        raise NotRegenerable
    if earlier is None and query.message_id and query.text.strip():
        return _plan_new(query, state, settings)  # its send never arrived: it is asked now
    if question is None or (earlier is None and query.message_id):
        raise NotFound
    if answer is not None and query.replaces and query.replaces == answer.metadata.get("replaces"):
        return answer
    return TurnPlan(question.turn_number, question.id, question.text, again=True, previous=answer)


def older_turn(query: Query, state: SessionState) -> int | None:
    """Return the number of the turn, before the latest, that answered this very message."""
    earlier = state.earlier
    if query.regenerate or earlier is None or earlier.role != "user":
        return None
    return earlier.turn_number if earlier.turn_number < state.head.latest_turn_number else None
