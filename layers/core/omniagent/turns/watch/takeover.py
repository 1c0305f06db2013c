"""Finishes what a process left behind: a turn whose process died, requests that expired, messages in line."""

import logging
import time
from contextlib import suppress
from dataclasses import replace

from omniagent.ai.result import AnswerSource
from omniagent.session.live import SessionHead
from omniagent.tracing import bind_context
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.engine.turn import Turn, begin_queued, turn_span
from omniagent.turns.journal.replay import kept_steps
from omniagent.turns.setup import MAX_ATTEMPTS, TimeLimit, TurnSetup
from omniagent.turns.state import Moved
from omniagent.turns.watch.closing import close_expired, close_turn, taken_over

logger = logging.getLogger(__name__)


async def take_up(setup: TurnSetup, limit: TimeLimit) -> AnswerSource | None:
    """Do what the session needs next: finish a dead turn, close expired requests, begin the first message in line.

    None if there is nothing to do, or another process does it. Raises the error that refuses a message's turn.
    """
    while (head := await setup.session.head()) is not None:
        if (turn := head.running) is not None:
            return None if await setup.is_alive(turn) else await go_on(setup, limit, head)
        with suppress(Moved):
            if head.waiting is not None:
                if not await close_expired(setup, head):
                    return None
            elif not head.queue:
                return None
            elif (begun := await begin_queued(setup, head, limit)) is not None:
                return begun
    return None


async def go_on(setup: TurnSetup, limit: TimeLimit, head: SessionHead) -> Turn | None:
    """Take over the session's running turn, whose process died. None if another process does, or it was closed.

    A turn that was stopped is closed as cancelled; one that cannot be continued, as interrupted.
    """
    session = setup.session
    with bind_context(session_id=session.session_id, user_id=session.user_id, user_category=session.category):
        taken = await taken_over(setup, head)
        if taken is None:
            return None
        turn, base, draft = taken.turn, taken.base, taken.draft()
        previous = await session.node(turn.replaces) if turn.replaces is not None and base is None else None
        signals, state = await setup.registry.signals(session.key, turn.journal), await session.load()
        if signals.stop or not draft.is_readable or turn.attempt - draft.hand_overs > MAX_ATTEMPTS:
            if not signals.stop:
                logger.error("dead turn not continued", extra={"turn_id": turn.id, "attempt": turn.attempt})
            await close_turn(setup, taken, "cancelled" if signals.stop else "interrupted")
            return None
        draft.lines.append(taken.first.lines)
        draft.next_chunk += 1
        details = {"turn_id": turn.id, "attempt": turn.attempt}
        if draft.is_handed_over:
            logger.info("turn goes on", extra=details)
        else:
            logger.warning("dead turn continued", extra=details)
        seconds = max(0.0, time.time() - draft.begun_at) if draft.begun_at is not None else 0.0
        with turn_span(setup, turn.number) as span:
            run = TurnRun(
                setup,
                taken.head,
                state,
                replace(limit, started_at=time.monotonic() - seconds),
                turn.message or state.question,
                previous=previous,
                # Once started, the journal already contains the kept steps.
                kept=kept_steps(previous) if previous is not None and not draft.has_started else (),
                base=base,
                draft=draft,
            )
            return Turn(run, span)
