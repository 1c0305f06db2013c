"""Settles a session from outside its turn: closes one whose process died, from its chunk log, and deletes sessions."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from omniagent.errors import NotFound, RegistryUnavailable
from omniagent.session.manager import SessionHead, SessionManager, SessionMessage, new_id
from omniagent.tracing import turn_state
from omniagent.turns.keeper import LeaseKeeper, requested
from omniagent.turns.lease import ERASE, REPAIR, Claim, TurnRegistry
from omniagent.turns.replay import record_frames

logger = logging.getLogger(__name__)


async def settle(session: SessionManager, registry: TurnRegistry) -> SessionHead | None:
    """Read the session for somebody who looks at it. A dead turn is closed first.

    The claim is taken before anything is repaired, so an owner that still lives learns it within a tick. Without the
    registry nothing is repaired, and the session is served as it is.
    """
    head = await session.head()
    if head is None or head.active_turn_id is None:
        return head
    claim = Claim(session.key, new_id(), REPAIR)
    try:
        if await requested(registry, claim, registry.claim(claim)) is not None:
            return head  # alive, or somebody else is repairing it
        try:
            await close_dead_turn(session, registry, head)
        finally:
            await registry.release(claim)
    except RegistryUnavailable as exc:
        logger.warning("dead turn not repaired", extra={"turn_id": head.active_turn_id, "cause": str(exc)})
        return head
    return await session.head()


async def close_dead_turn(session: SessionManager, registry: TurnRegistry, head: SessionHead) -> None:
    """Store what a dead turn had streamed, marked interrupted. The caller holds the session's claim."""
    if head.active_turn_id is None:
        return
    chunks = await registry.read(session.key, head.active_turn_id)
    recorder = record_frames(b"".join(frames for _, frames in chunks))
    recorder.close()
    metadata = {
        "sessionId": session.session_id,
        "turnNumber": head.latest_turn_number,
        "status": "interrupted",
        "finishReason": "other",
        "stopReason": "interrupted",
    }
    answer = SessionMessage(
        id=head.active_turn_id,
        role="assistant",
        turn_number=head.latest_turn_number,
        parts=recorder.parts,
        status="interrupted",
        metadata=metadata,
    )
    if await session.repair_turn(answer) is not None:
        turn_state("running", "interrupted")
        logger.warning("interrupted turn repaired", extra={"turn_id": answer.id, "parts": len(answer.parts)})


async def living(registry: TurnRegistry, sessions: Iterable[str]) -> set[str]:
    """Return those of the sessions, by key, that a living process is answering."""
    keys = list(sessions)
    turns = await asyncio.gather(*(registry.running(key) for key in keys))
    return {key for key, turn in zip(keys, turns, strict=True) if turn is not None and turn.alive}


async def erase_session(session: SessionManager, registry: TurnRegistry, time_left: Callable[[], float]) -> bool:
    """Mark the session as erased, then delete its messages, its summaries, its chunks and itself.

    Returns False when the time is over before all is deleted. Every step can be repeated.
    """
    claim = Claim(session.key, new_id(), ERASE)
    tick_seconds = session.settings.tick_seconds
    held = await requested(registry, claim, registry.seize(claim))
    keeper = LeaseKeeper(registry, claim, tick_seconds=tick_seconds)
    try:
        is_known = await session.mark_erased()
        while not await session.erase_some():
            if time_left() <= 0:
                return False
        await registry.erase(session.key)
        if held is not None and held.alive:
            # The owner of the running turn learns at its next tick that it lost the claim, and may log one more chunk.
            await asyncio.sleep(2 * tick_seconds)
            await registry.erase(session.key)
    finally:
        await keeper.finish()
    if not is_known:
        raise NotFound
    return True
