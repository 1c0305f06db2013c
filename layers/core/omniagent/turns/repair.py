"""Closes a turn whose process died, from what its chunk log still knows."""

import asyncio
import logging
from collections.abc import Iterable

from omniagent.errors import RegistryUnavailable
from omniagent.session.identity import new_id
from omniagent.session.manager import SessionManager
from omniagent.session.state import SessionHead, SessionMessage
from omniagent.tracing import turn_state
from omniagent.turns.lease import REPAIR, Claim, TurnRegistry
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
        if await registry.claim(claim) is not None:
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
