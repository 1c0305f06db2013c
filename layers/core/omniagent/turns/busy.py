"""The busy policy: what happens to a message while a turn runs or other messages are queued.

Imported only when that is the case.
"""

import asyncio
import time
from dataclasses import replace

from omniagent.ai.result import AnswerSource
from omniagent.errors import TurnInProgress
from omniagent.session.manager import SessionHead, message_id_of
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.inbox import MAX_POSTED_CHARS, wait_for_runner
from omniagent.turns.lease import REPAIR, RunningTurn
from omniagent.turns.posted_answer import PostedAnswer
from omniagent.turns.query import Query
from omniagent.turns.repair import released_late, waited_for
from omniagent.turns.setup import TurnSetup

INTERRUPT_SECONDS = 30.0
"""How long a regeneration waits for the turn that it interrupts."""


async def meet(setup: TurnSetup, query: Query, limit: TimeLimit, held: RunningTurn) -> AnswerSource | None:
    """Apply the message's busy policy. Return its answer, or None to retry the claim.

    Raises `TurnInProgress`, `QueueFull`, `TooManyReaders` or `BudgetExceeded`.
    """
    query = replace(query, busy=query.busy or "reject")
    can_queue = bool(query.text) and not query.regenerate  # answers to a waiting turn are not messages either
    if can_queue and query.is_queued(held.inbox):
        return await PostedAnswer(setup, query, limit).joined()
    if not held.alive and (waiting_id := await waited_for(setup.session, held)) is not None:
        # The message closes the open requests instead of answering them. Messages queued before it run first.
        if len(query.text) > MAX_POSTED_CHARS:
            raise TurnInProgress
        return await _post(PostedAnswer(setup, query, limit), held, await setup.session.head(), interrupts=waiting_id)
    if not held.alive and query.busy == "reject":
        # Messages are queued, and another process may be about to run the next. Otherwise this one runs them first.
        taken = await wait_for_runner(setup)
        if taken is None or not (taken.alive or taken.inbox):
            return None
        if taken.alive:
            raise TurnInProgress
        held, query = taken, replace(query, busy="queue")
    head = await setup.session.head()
    if held.alive and await _is_over(setup, held, head):
        return None
    if (
        query.busy == "reject"
        and can_queue
        and (known := await PostedAnswer(setup, query, limit).known(head)) is not None
    ):
        return known
    if query.busy == "reject" or len(query.text) > MAX_POSTED_CHARS or not (can_queue or query.regenerate):
        raise TurnInProgress(retry_after=1.0 if held.stopping else max(1.0, held.lease_left))
    return await _admitted(setup, query, limit, held, head)


async def _admitted(
    setup: TurnSetup, query: Query, limit: TimeLimit, held: RunningTurn, head: SessionHead | None
) -> AnswerSource | None:
    if query.regenerate:
        return await _interrupt(setup, query, limit, held)
    interrupts = message_id_of(held.claim.turn_id) if query.busy == "interrupt" else ""
    return await _post(PostedAnswer(setup, query, limit), held, head, interrupts=interrupts)


async def _post(
    answer: "PostedAnswer", held: RunningTurn, head: SessionHead | None, *, interrupts: str
) -> AnswerSource | None:
    if held.alive and head is None:
        # Never post to a session that does not exist yet: its deletion would not find the message.
        await asyncio.sleep(answer.settings.tick_seconds)
        return None
    return await answer.known(head) or await answer.posted(held, interrupts)


async def _is_over(setup: TurnSetup, held: RunningTurn, head: SessionHead | None) -> bool:
    """Whether the session is about to become free: its turn has ended, or a dead turn is being repaired."""
    if await released_late(setup.registry, held.claim, head):
        return True
    if held.claim.message_id == REPAIR:
        await asyncio.sleep(setup.settings.tick_seconds)
        return True
    return False


async def _interrupt(setup: TurnSetup, query: Query, limit: TimeLimit, held: RunningTurn) -> AnswerSource | None:
    """Stop the running turn for a regeneration. Its message is already stored, so it is not posted."""
    patience = min(INTERRUPT_SECONDS, limit.stop_at - limit.started_at)
    if query.busy != "interrupt" or time.monotonic() - limit.started_at > patience:
        raise TurnInProgress
    await setup.registry.stop(setup.session.key, held.claim.turn_id)
    await asyncio.sleep(setup.settings.tick_seconds)
    return None
