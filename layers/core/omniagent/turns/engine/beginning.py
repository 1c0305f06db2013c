"""Begins turns: gives a message the turn, within the limit of running turns, and starts its run."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from omniagent.errors import OmniAgentError, TooManyTurns
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn, QueuedMessage, SessionHead, SessionState
from omniagent.tracing import Span, SpanKind, trace_operation
from omniagent.tracing.attributes import AGENT_NAME, TURN_NUMBER
from omniagent.turns import decisions, state_events
from omniagent.turns import state as states
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.engine.turn import Turn
from omniagent.turns.journal.replay import kept_steps
from omniagent.turns.setup import TurnSetup

MAX_COUNTS, COUNT_SECONDS = 20, 0.05
"""How often, and how far apart, the running turns of a user are counted while others may give way."""


async def begin(
    setup: TurnSetup, state: SessionState, run: decisions.Run, limit: TimeLimit, *, queued: QueuedMessage | None = None
) -> Turn:
    """Give a message the turn and start it. Raises `TooManyTurns`, and `Moved` if the session has moved on.

    `queued` is the message as it was in line: if the user's limit keeps its turn from running, it goes back.
    """
    turn_id, message = new_id(), run.message
    turn = LiveTurn(
        id=turn_id,
        number=message.turn_number,
        run=new_id(),
        journal=turn_id,
        message_id=message.id,
        since=setup.session.now(),
        message=message if run.is_new else None,
        replaces=run.previous.id if run.previous is not None else None,
        question=message.node,
        branch=state.spot.branch,
        lineage=state.spot.lineage,
    )
    with turn_span(setup, turn.number) as span:
        if run.closes is not None or queued is not None or state.head.version == 0:
            await _check_limit(setup)  # a refusal must leave no trace: closed requests, a turn others saw, a session
        head = await setup.apply(state.head, state_events.Begin(turn, run.closes))
        try:
            await _check_limit(setup, head.turn)
        except OmniAgentError:
            await _withdraw(setup, state.head, head, queued)
            raise
        if run.closes is not None:
            state = state.with_answer(run.closes)
        kept = kept_steps(run.previous, regenerates=run.regenerates) if run.previous is not None else ()
        return Turn(TurnRun(setup, head, state, limit, message, previous=run.previous, kept=kept), span)


@contextmanager
def turn_span(setup: TurnSetup, turn_number: int) -> Iterator[Span]:
    """Start a run of a turn in its span. The turn ends the span, unless it does not start."""
    attributes = {AGENT_NAME: setup.agent.name, TURN_NUMBER: turn_number}
    span = trace_operation("turn", kind=SpanKind.AGENT, attributes=attributes)
    try:
        with span.resumed():
            yield span
    except BaseException as exc:
        if not isinstance(exc, states.Moved):
            span.error(exc)
        span.end()
        raise


async def _check_limit(setup: TurnSetup, own: LiveTurn | None = None) -> None:
    """Enforce the limit of running turns. Raises `TooManyTurns`. Dead turns do not count.

    `own` is in its session already, so of those that begin at once, each sees all others. Those that began after
    others give way at once; the first waits until they have.
    """
    limit = setup.settings.max_running_turns_per_user
    for _ in range(MAX_COUNTS):
        running = [(key, turn) for key, turn in await setup.session.busy_sessions() if turn and turn.state == "running"]
        if len(running) < limit:
            return
        alive = [turn for key, turn in running if await setup.is_alive(turn, key)]
        if len(alive) < limit:
            return
        if own is None or sum(_order(turn) < _order(own) for turn in alive) >= limit:
            break
        await asyncio.sleep(COUNT_SECONDS)
    raise TooManyTurns


def _order(turn: LiveTurn) -> tuple[int, str]:
    """Return what orders turns by their beginning: in milliseconds, as MongoDB stores times."""
    return int(turn.since.timestamp() * 1000), turn.run


async def _withdraw(setup: TurnSetup, before: SessionHead, head: SessionHead, queued: QueuedMessage | None) -> None:
    """Take back a turn that may not run, before its first model call. A session that was new is deleted again."""
    turn = head.turn
    if turn is None:
        return
    if queued is not None:
        signals = await setup.registry.signals(setup.session.key, turn.journal)
        queued = replace(queued, is_stopped=signals.stop)

    def withdrawn(fresh: SessionHead) -> state_events.Event:
        is_own = fresh.turn is not None and fresh.turn.run == turn.run
        is_new = before.version == 0 and not fresh.queue and is_own
        return state_events.Erase() if is_new else state_events.Withdraw(turn.run, queued, before.changed_at)

    after = await setup.settle(withdrawn, head)
    if after is not None and after.is_erased:
        await setup.session.erase_some()


async def begin_queued(setup: TurnSetup, head: SessionHead, limit: TimeLimit) -> Turn | None:
    """Begin the turn of the first message in line. None if it was stopped. Raises `TooManyTurns` and `Moved`."""
    message = head.queue[0]
    if message.is_stopped:
        await setup.apply(head, state_events.StopQueued(message.id))
        return None
    state = await setup.session.load(message)
    if state.head.version != head.version:
        raise states.Moved("the session has changed since")
    setup.meter.forget()
    run = decisions.Run(states.question_of(message, state.after, state.spot, message.node))
    # Its waiting time does not count as turn time.
    return await begin(setup, state, run, replace(limit, started_at=time.monotonic()), queued=message)
