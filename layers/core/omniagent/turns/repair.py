"""Closes a turn whose process died, from what its chunk log still knows."""

import logging

from omniagent.errors import RegistryUnavailable
from omniagent.session.manager import SessionManager
from omniagent.turns.lease import TurnRegistry
from omniagent.turns.recorder import replay

logger = logging.getLogger("omniagent.turns")


async def repair(session: SessionManager, registry: TurnRegistry, turn_id: str | None) -> bool:
    """Store the answer of the dead turn that the session still names, marked interrupted.

    `turn_id` is the session's `active_turn_id`. Returns False when there is nothing to repair: no turn is open, it
    still lives, or somebody else closed it. Whoever comes next calls this: a message, a read, a resume.
    """
    if turn_id is None:
        return False
    running = await registry.running(session.key)
    if running is not None and running.alive and running.claim.turn_id == turn_id:
        return False
    recorder = replay(b"".join(frames for _, frames in await registry.read(session.key, turn_id)))
    recorder.close()
    repaired = await session.repair_turn(turn_id, recorder.parts)
    if repaired:
        logger.warning("interrupted turn repaired", extra={"turn_id": turn_id, "parts": len(recorder.parts)})
    return repaired


async def repair_for_reading(session: SessionManager, registry: TurnRegistry, turn_id: str | None) -> bool:
    """The same for a reader, who is served without the repair when the registry cannot be reached."""
    try:
        return await repair(session, registry, turn_id)
    except RegistryUnavailable as exc:
        logger.warning("interrupted turn not repaired", extra={"turn_id": turn_id, "cause": str(exc)})
        return False
