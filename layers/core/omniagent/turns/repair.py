"""Settles a session from outside its turn: closes one whose process died, from its chunk log."""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from omniagent.errors import RegistryUnavailable
from omniagent.messages import Usage
from omniagent.session.manager import SessionHead, SessionManager, SessionMessage, new_id
from omniagent.tracing import turn_state
from omniagent.turns.keeper import requested
from omniagent.turns.lease import REPAIR, Claim, TurnRegistry
from omniagent.turns.replay import calls_of, record_frames

if TYPE_CHECKING:
    from omniagent.turns.ledger import Ledger

logger = logging.getLogger(__name__)


async def settle(session: SessionManager, registry: TurnRegistry, ledger: "Ledger | None" = None) -> SessionHead | None:
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
            await close_dead_turn(session, registry, head, ledger)
        finally:
            await registry.release(claim)
    except RegistryUnavailable as exc:
        logger.warning("dead turn not repaired", extra={"turn_id": head.active_turn_id, "cause": str(exc)})
        return head
    return await session.head()


async def close_dead_turn(
    session: SessionManager, registry: TurnRegistry, head: SessionHead, ledger: "Ledger | None" = None
) -> None:
    """Store what a dead turn had streamed, marked interrupted. The caller holds the session's claim.

    What it had reserved of the user's budget is settled first: a repair that dies as well is repeated.
    """
    if head.active_turn_id is None:
        return
    frames = b"".join(frames for _, frames in await registry.read(session.key, head.active_turn_id))
    recorder = record_frames(frames)
    recorder.close()
    calls = calls_of(frames, recorder.parts)
    if ledger is not None:
        await ledger.settle_dead(session.user_id, head.active_turn_id, calls)
    usage = sum(calls, Usage())
    metadata = {
        "sessionId": session.session_id,
        "turnNumber": head.latest_turn_number,
        "status": "interrupted",
        "finishReason": "other",
        "stopReason": "interrupted",
        **({"steps": len(calls), "usage": usage.to_dict()} if calls else {}),
    }
    answer = SessionMessage(
        id=head.active_turn_id,
        role="assistant",
        turn_number=head.latest_turn_number,
        parts=recorder.parts,
        status="interrupted",
        usage=usage,
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
