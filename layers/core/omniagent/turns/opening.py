"""From a message to its turn: claim, join, read, admit, plan, begin. Every refusal comes from here."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from omniagent.ai.result import AnswerSource
from omniagent.aio import both
from omniagent.errors import (
    InvalidRequest,
    NotFound,
    NotRegenerable,
    OmniAgentError,
    RequestError,
    SessionErased,
    StorageConflict,
    TooManyTurns,
    TurnInProgress,
)
from omniagent.session.manager import SessionHead, SessionMessage, SessionState, new_id, session_of_slot, slot_of
from omniagent.tracing import SpanKind, bind_context, trace_operation
from omniagent.tracing.attributes import AGENT_NAME, TURN_NUMBER
from omniagent.turns.assignment import Assignment
from omniagent.turns.claiming import Notice, taken
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.follow import FollowedAnswer
from omniagent.turns.hooks import call_back
from omniagent.turns.keeper import LeaseKeeper
from omniagent.turns.lease import ERASE, REPAIR, Claim, InboxMessage, RunningTurn
from omniagent.turns.query import Query
from omniagent.turns.repair import close_dead_turn, close_waiting, living, released_late, waited_for
from omniagent.turns.replay import ReplayedAnswer, handed_over_at, kept_steps
from omniagent.turns.setup import HAND_OVER_SECONDS, MAX_ATTEMPTS, TurnPlan, TurnSetup
from omniagent.turns.turn import Turn

logger = logging.getLogger(__name__)
Opened = TypeVar("Opened")

MAX_TURNS = 1_000_000
"""Maximum number of turns in a session."""
REPAIR_POLL_SECONDS = 0.1


class Opening:
    """Opens the answer to one message: of a new turn, a running turn, or one that has ended."""

    def __init__(self, setup: TurnSetup, query: Query, limit: TimeLimit, posted: InboxMessage | None = None) -> None:
        self._setup = setup
        self._session = setup.session
        self._registry = setup.registry
        self._query = query
        self._limit = limit
        self._posted = posted
        self._refusal: BaseException | None = None
        with self._bound():
            self._span = trace_operation("turn", kind=SpanKind.AGENT, attributes={AGENT_NAME: setup.agent.name})
        self._is_handed_over = False
        self._may_continue = True
        self._may_wait = True
        self._has_closed = False
        """A waiting turn was closed, and messages may be queued behind it."""
        self._dead: Claim | None = None

    async def open(self) -> AnswerSource:
        """Return the answer to read. Raises a `RequestError`, or the error that makes the session unavailable."""
        return await self._traced(self._open())

    async def open_once(self, attempt: int = 0) -> AnswerSource | None:
        """Return the answer to the inbox's first message, or to a dead process's question.

        None if the session is held. `attempt` counts the processes that died with this question.
        """
        return await self._traced(self._open_once(attempt))

    async def _traced(self, opening: Coroutine[Any, Any, Opened]) -> Opened:
        span = self._span
        try:
            with self._bound(), span.resumed():
                return await opening
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
        claim = self._claim()
        with self._noticed(claim) as notice:
            while (held := await taken(self._registry, claim, self._note_dead)) is not None:
                if (answer := await self._join(held)) is not None:
                    notice.withdraw()
                    return answer
        return await self._open_kept(self._setup.keeper(claim, notice))

    async def _open_once(self, attempt: int) -> AnswerSource | None:
        claim = replace(self._claim(), attempt=attempt)
        with self._noticed(claim) as notice:
            if await taken(self._registry, claim, self._note_dead) is not None:
                notice.withdraw()
                return None
        return await self._open_kept(self._setup.keeper(claim, notice))

    @contextmanager
    def _noticed(self, claim: Claim) -> Iterator[Notice]:
        """Have a turn watched from the moment its session is claimed, in case this process dies.

        A takeover, a queued message and a reply have a watch already, so theirs is sent only when the turn begins.
        """
        notice = self._setup.notice(claim)
        if claim.question:
            notice.give()
        try:
            yield notice
        except BaseException:
            notice.withdraw()
            raise

    async def _open_kept(self, keeper: LeaseKeeper) -> AnswerSource:
        try:
            answer = await self._open_claimed(keeper)
        except _SentAgain:
            await self._abandon(keeper, is_settled=False)
            return await self._continue()
        except _NeverSent:
            await self._abandon(keeper, is_settled=False)
            self._query = replace(self._query, regenerate=False)
            return await self._open()
        except _HeldUp:
            from omniagent.turns.posted_answer import PostedAnswer

            await self._abandon(keeper, is_settled=False)
            return await PostedAnswer(self._setup, self._query, self._limit).joined()
        except _HandedOver as exc:
            await self._abandon(keeper, is_settled=False)
            await self._put_back(exc.claim)
            return await self._open()
        except BaseException as exc:
            if not self._is_handed_over:
                is_refused = isinstance(exc, RequestError)
                is_settled = is_refused and not isinstance(exc, TooManyTurns | TurnInProgress)
                is_kept = keeper.claim.attempt > 0 and not is_refused and self._posted is None
                await self._abandon(keeper, is_settled=is_settled, is_kept=is_kept)
            raise
        if not isinstance(answer, Turn):
            await self._abandon(keeper, is_settled=True)
        return answer

    def _note_dead(self, dead: Claim) -> None:
        self._dead = dead

    async def _check_not_handed_over(self, turn_id: str) -> None:
        """Give the next process time to take over a handed-over turn. It is closed only if none does."""
        grace, dead = self._setup.hooks.grace_seconds, self._dead
        if not grace or dead is None or dead.turn_id != turn_id or self._posted is not None:
            return
        frames = b"".join(frames for _, frames in await self._registry.read(self._session.key, turn_id))
        at = handed_over_at(frames)
        if at is not None and time.time() - at < grace:
            raise _HandedOver(dead)

    async def _put_back(self, claim: Claim) -> None:
        """Restore the session's claim as it was found, and wait briefly for the next process."""
        if await self._registry.claim(replace(claim, question=b"")) is None:
            await self._registry.let_go(claim)
        if not self._may_wait:
            raise TurnInProgress(retry_after=1.0)
        self._may_wait = False
        give_up_at = time.monotonic() + HAND_OVER_SECONDS
        while time.monotonic() < give_up_at:
            held = await self._registry.running(self._session.key)
            if held is None or held.alive:
                break
            await asyncio.sleep(self._setup.settings.tick_seconds)

    def _claim(self) -> Claim:
        query, session = self._query, self._session
        question = b"" if self._posted is not None else query.packed(session)  # the inbox has it
        return Claim(session.key, new_id(), query.claim_id, query.aliases, question=question)

    async def _is_retry(self, state: SessionState) -> bool:
        """Whether the session's dead turn may be the one that this request asked for before."""
        return self._query.regenerate or state.earlier is not None

    async def _continue(self) -> AnswerSource:
        """Continue the dead turn of this message. If that is impossible, the turn is closed and answered again."""
        from omniagent.turns.takeover import Takeover  # needed only after a crash

        self._may_continue = False
        return await Takeover(self._setup, self._limit, self._query).open() or await self._open()

    async def _open_claimed(self, keeper: LeaseKeeper) -> AnswerSource:
        settings, query = self._setup.settings, self._query
        limit = settings.max_running_turns_per_user
        turn_id = keeper.claim.turn_id
        # Slot and tokens are requested while the session is read. A replay needs neither and returns them.
        holders, state = await both(self._session.admit(limit, turn_id), self._session.load(query.known_id))
        if state.earlier is not None:
            query.check_same(state.earlier)
        if state.head.active_turn_id is not None:
            if self._may_continue and await self._is_retry(state):
                raise _SentAgain
            await self._check_not_handed_over(state.head.active_turn_id)
            await close_dead_turn(self._session, self._registry, state.head)
            state = await self._session.load(query.known_id)
        elif state.head.has_expired(self._session.now()):
            self._has_closed = await close_waiting(self._session, "expired", self._registry, self._setup.hooks)
            state = await self._session.load(query.known_id)
        plan = await self._plan(state)
        if not isinstance(plan, TurnPlan):
            return plan
        await self._ensure_admitted(holders, limit, turn_id)
        if self._posted is None:  # otherwise counted when it was queued; its turn says why it failed
            await self._setup.meter.admit()
        if self._posted is not None and keeper.claim.attempt > MAX_ATTEMPTS:
            logger.error("dead turn not continued", extra={"turn_id": turn_id, "attempt": keeper.claim.attempt})
            self._refusal = self._refusal or OmniAgentError("its processes died before the turn began")
        return await self._begin(keeper, plan, state)

    async def _plan(self, state: SessionState) -> TurnPlan | AnswerSource:
        number = older_turn(self._query, state)
        if self._posted is not None:
            if self._posted.stopped:
                self._refusal = asyncio.CancelledError()
            # Already stored: its turn died, or it joined another turn. That is its answer.
            number = state.earlier.turn_number if state.earlier is not None else None
            if number is None and state.head.waiting_id not in (None, self._posted.interrupts):
                raise TurnInProgress  # it was sent before the approval request, and waits for its answer
        if number is None:
            if self._query.regenerate and self._query.is_new(state):
                raise _NeverSent
            if self._posted is None and state.head.waiting_id is not None:
                await self._check_not_held_up()
            plan = plan_turn(self._query, state)
        elif (answer := await self._session.answer(number)) is not None:
            plan = answer
        else:
            raise NotRegenerable
        return plan if isinstance(plan, TurnPlan) else ReplayedAnswer(self._session.session_id, plan)

    async def _check_not_held_up(self) -> None:
        """Keep the open requests for a retried message: it was first sent before they were made."""
        held = await self._registry.running(self._session.key)
        if held is not None and self._query.is_queued(held.inbox) and await waited_for(self._session, held) is not None:
            raise _HeldUp

    async def _ensure_admitted(self, holders: Sequence[str], limit: int, turn_id: str) -> None:
        """Enforce the limit of running turns. Slots of dead turns are released first and never count."""
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
        if plan.waited is not None and plan.continued is None:
            state = state.with_answer(plan.waited)
        assignment = Assignment(
            keeper.claim.turn_id,
            plan,
            state,
            self._limit,
            refusal=self._refusal,
            was_posted=self._posted is not None,
            run_queued=self._run_queued if keeper.claim.goes_first and not keeper.claim.attempt else None,
        )
        turn = Turn(self._setup, assignment, keeper, self._span)
        try:
            await turn.begin()
        except StorageConflict as exc:
            raise TurnInProgress(retry_after=1.0) from exc
        finally:
            # Once begun, the turn itself releases the claim and the slot and ends the span.
            self._is_handed_over = turn.has_begun
        return turn

    async def _run_queued(self) -> None:
        from omniagent.turns.inbox import look_after  # needed only for queued messages

        await look_after(self._setup, self._limit)

    async def _join(self, held: RunningTurn) -> AnswerSource | None:
        """Follow the turn that answers this message, or wait for it. None to retry the claim."""
        claim = held.claim
        if claim.message_id == ERASE:
            raise SessionErased
        message = await self._sent_before()
        if held.alive and await self._is_answered_by(claim, message):
            return await FollowedAnswer.begun(self._setup, claim, self._limit)
        if held.inbox or self._query.busy not in (None, "reject"):
            from omniagent.turns.busy import meet  # needed only for a busy session

            return await meet(self._setup, self._query, self._limit, held)
        if claim.message_id == REPAIR:
            await asyncio.sleep(REPAIR_POLL_SECONDS)  # until the repair is done, or its lease expires
            return None
        head = await self._session.head()
        if await released_late(self._registry, claim, head):
            return None
        if (replayed := await self._replayed(head, message)) is not None:
            return replayed
        raise TurnInProgress(retry_after=1.0 if held.stopping else max(1.0, held.lease_left))

    async def _sent_before(self) -> SessionMessage | None:
        """Return the stored message with this message's id. None if the request has no message of its own."""
        query = self._query
        message = await self._session.find(query.message_id) if query.text and query.message_id else None
        if message is not None:
            query.check_same(message)
        return message

    async def _is_answered_by(self, claim: Claim, message: SessionMessage | None) -> bool:
        """Whether a running turn answers this message: its own, or one that regenerates or continues its answer."""
        query = self._query
        if claim.message_id == query.claim_id:
            return True
        if message is None or query.regenerate or not message.was_sent_as(query.message_id):
            return False
        head = await self._session.head()
        return head is not None and head.active_turn_id == claim.turn_id and head.is_answering(message)

    async def _replayed(self, head: SessionHead | None, message: SessionMessage | None) -> ReplayedAnswer | None:
        """Return an earlier turn's answer to this message. Another running turn does not prevent a replay."""
        query = self._query
        if head is None or message is None or query.regenerate or message.turn_number >= head.latest_turn_number:
            return None
        if not message.was_sent_as(query.message_id):
            return None
        answer = await self._session.answer(message.turn_number)
        return None if answer is None else ReplayedAnswer(self._session.session_id, answer)

    async def _abandon(self, keeper: LeaseKeeper, *, is_settled: bool, is_kept: bool = False) -> None:
        """Return the slot and the claim of a turn that does not begin.

        An inbox message that is answered, or refused for good, is removed from the inbox. With `is_kept` the claim
        keeps a dead process's question, to be asked later.
        """
        try:
            await self._session.withdraw(slot_of(self._session.key, keeper.claim.turn_id))
        except Exception as exc:  # a stale slot is released when another turn needs it
            logger.warning("slot not withdrawn", extra={"cause": f"{type(exc).__name__}: {exc}"})
        finally:
            taken = [self._posted.id] if self._posted is not None and is_settled else []
            leaves_messages = await asyncio.shield(keeper.hand_over() if is_kept else keeper.abandon(taken))
            if leaves_messages and self._has_closed:
                await call_back(self._setup.hooks.on_wake)


class _SentAgain(Exception):
    """The session has a dead turn, and this message is a retry."""


class _NeverSent(Exception):
    """The message to regenerate has not arrived yet: it is answered now, behind the queued messages."""


class _HeldUp(Exception):
    """The message is queued behind a turn that waits for a human."""


class _HandedOver(Exception):
    """The session has a handed-over turn that the next process is about to continue."""

    def __init__(self, claim: Claim) -> None:
        super().__init__()
        self.claim = claim


def plan_turn(query: Query, state: SessionState) -> TurnPlan | SessionMessage:
    """Return the plan, or the stored answer to replay. Raises a `RequestError` when the session cannot serve it."""
    if query.regenerate:
        return _plan_regeneration(query, state)
    earlier = state.earlier
    if earlier is None:
        return _plan_new(query, state)
    if not earlier.was_sent_as(query.message_id):
        raise InvalidRequest("This message id belongs to an answer. Choose another one.")
    if earlier.turn_number < state.head.latest_turn_number:
        raise NotRegenerable  # older answers were replayed before this check
    if state.answer is not None and state.answer.status in ("complete", "waiting"):
        return state.answer
    question = earlier if earlier.role == "user" else state.question
    if question is None:
        raise NotRegenerable
    return _plan_again(question, state.answer)


def _plan_new(query: Query, state: SessionState) -> TurnPlan:
    if state.head.latest_turn_number >= MAX_TURNS:
        raise InvalidRequest("This session has reached its last turn. Start a new one.")
    number, answer = state.head.latest_turn_number + 1, state.answer
    seen_turn_id = state.head.latest_turn_id
    if answer is None or answer.status != "waiting":
        return TurnPlan(number, query.message_id, query.text, seen_turn_id=seen_turn_id)
    from omniagent.turns.waiting import closed  # needed only for a waiting turn

    unanswered = closed(answer, "unanswered")
    return TurnPlan(number, query.message_id, query.text, waited=unanswered, seen_turn_id=seen_turn_id)


def _plan_regeneration(query: Query, state: SessionState) -> TurnPlan | SessionMessage:
    earlier, question, answer = state.earlier, state.question, state.answer
    if earlier is not None and earlier.turn_number < state.head.latest_turn_number:
        raise NotRegenerable
    if question is None or (earlier is None and query.message_id):
        raise NotFound
    if answer is not None and query.replaces and query.replaces == answer.metadata.get("replaces"):
        return answer
    return _plan_again(question, answer, regenerates=True)


def _plan_again(question: SessionMessage, answer: SessionMessage | None, *, regenerates: bool = False) -> TurnPlan:
    kept = kept_steps(answer, regenerates=regenerates)
    return TurnPlan(question.turn_number, question.id, question.text, again=True, previous=answer, kept=kept)


def older_turn(query: Query, state: SessionState) -> int | None:
    """Return the number of the turn, before the latest, that answered this message."""
    earlier = state.earlier
    if query.regenerate or earlier is None:
        return None
    if not earlier.was_sent_as(query.message_id):
        return None
    return earlier.turn_number if earlier.turn_number < state.head.latest_turn_number else None
