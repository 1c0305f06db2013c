"""Stops a session's turn and its messages in line."""

from omniagent.session.live import LiveTurn, SessionHead
from omniagent.tracing import session_state, turn_state
from omniagent.turns.hooks import call_back
from omniagent.turns.setup import SessionSetup
from omniagent.turns.state import STOPPED_ERROR, Moved, closed
from omniagent.turns.state_events import Close, StopQueued
from omniagent.turns.watch.closing import close_dead


async def stop_session(setup: SessionSetup, message_id: str | None) -> bool:
    """Stop the running or waiting turn and all messages in line, or only what a message names. See `Runner.stop`."""
    is_stopped = False
    while (head := await setup.session.head()) is not None:
        try:
            if any(message_id in (None, message.id) and not message.is_stopped for message in head.queue):
                await setup.apply(head, StopQueued(message_id))
                is_stopped = True
                continue
            turn = head.turn
            if turn is None or not await _is_meant(setup, turn, message_id):
                return is_stopped
            if turn.state == "running":
                await setup.registry.signal(setup.session.key, turn.journal, stop=True)
                if not await setup.is_alive(turn):
                    await close_dead(setup, head)
                is_stopped, message_id = True, turn.id
                if not await _waits(setup, turn):
                    return True
            else:
                await _stop_waiting(setup, head, turn)
                return True
        except Moved:
            continue
    return is_stopped


async def _is_meant(setup: SessionSetup, turn: LiveTurn, message_id: str | None) -> bool:
    """Whether the turn is the one to stop. A message that it answers may be in the history."""
    if turn.is_named(message_id):
        return True
    found = await setup.session.find(message_id, at=turn.place) if message_id is not None else ()
    return any(message.node in (turn.id, turn.question) for message in found)


async def _waits(setup: SessionSetup, turn: LiveTurn) -> bool:
    """Whether the turn began to wait before it could read the signal."""
    head = await setup.session.head()
    return head is not None and head.waiting is not None and head.waiting.id == turn.id


async def _stop_waiting(setup: SessionSetup, head: SessionHead, turn: LiveTurn) -> None:
    answer = await setup.session.node(turn.id)
    if answer is None:
        return  # deleted meanwhile
    after = await setup.apply(head, Close(closed(answer, "cancelled", STOPPED_ERROR)))
    turn_state("waiting", "cancelled", stop_reason="cancelled")
    session_state("waiting", "idle")
    if after.queue:
        await call_back(setup.hooks.on_work)
