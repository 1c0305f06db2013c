"""Settles a session from outside its turn: closes one whose process died, from its chunk log, and deletes sessions."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from omniagent.errors import NotFound, RegistryUnavailable
from omniagent.messages import Usage
from omniagent.session.manager import SessionHead, SessionManager, SessionMessage, new_id
from omniagent.tracing import turn_state
from omniagent.turns.keeper import PAUSED_TICKS, LeaseKeeper, requested
from omniagent.turns.lease import ERASE, REPAIR, Claim, TurnRegistry
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


async def erase_session(
    session: SessionManager, registry: TurnRegistry, time_left: Callable[[], float], *, resume: bool = False
) -> bool:
    """Mark the session as erased, then delete its chunks, its messages, its summaries and at last itself.

    Returns False when the time is over before all is deleted. Every step can be repeated. `resume` goes on with a
    deletion that was begun earlier: a session that has been made under the same id since is left alone.
    """
    if resume and await session.head() is not None:
        return True
    claim = Claim(session.key, new_id(), ERASE)
    if resume and await _is_answering(registry, session.key):
        return False  # a turn that is about to be refused, or to make a new session: look again later
    held = await requested(registry, claim, registry.seize(claim))
    keeper = LeaseKeeper(registry, claim, tick_seconds=session.settings.tick_seconds)
    try:
        is_known = resume or await session.mark_erased()
        is_done = await _erase_log(registry, session.key, time_left)
        if is_done and held is not None and held.alive:
            # The owner of the running turn learns at its next tick that it lost the claim, and may log one more chunk.
            await asyncio.sleep(PAUSED_TICKS * session.settings.tick_seconds)
            is_done = await _erase_log(registry, session.key, time_left)
        # The session itself goes last: while it is there and marked, somebody can go on.
        is_done = is_done and await _repeated(session.erase_some, time_left)
    finally:
        await keeper.finish()
    if not is_known:
        raise NotFound
    return is_done


async def erase_user(
    session: SessionManager, registry: TurnRegistry, time_left: Callable[[], float], *, resume: bool = False
) -> bool:
    """Delete the session's user with all their sessions and whatever else is stored under their id, the user last.

    Returns False when the time is over before all is deleted. `resume` goes on with a deletion that was begun earlier:
    a user who has come back since is left alone.
    """
    if resume and not await session.user_is_erased():
        return True
    if not await _repeated(session.mark_user_erased, time_left):
        return False
    is_forgotten = False
    while not is_forgotten:
        if not await erase_sessions(session, registry, time_left):
            return False
        if not await _erase_log(registry, session.user_id, time_left):
            return False
        is_forgotten = await session.forget_user()
    return True


async def erase_sessions(
    session: SessionManager,
    registry: TurnRegistry,
    time_left: Callable[[], float],
    *,
    before: datetime | None = None,
) -> bool:
    """Delete all sessions of the session's user, or those created before a time. False when the time is over."""
    while sessions := await session.sessions_of_user(before=before):
        for one in sessions:
            with suppress(NotFound):  # deleted by somebody else meanwhile
                if not await erase_session(one, registry, time_left):
                    return False
            if time_left() <= 0:
                return False
    return True


async def _is_answering(registry: TurnRegistry, key: str) -> bool:
    held = await registry.running(key)
    return held is not None and held.alive and held.claim.message_id != ERASE


async def _erase_log(registry: TurnRegistry, owner: str, time_left: Callable[[], float]) -> bool:
    return await _repeated(lambda: registry.erase(owner), time_left)


async def _repeated(piece: Callable[[], Awaitable[bool]], time_left: Callable[[], float]) -> bool:
    """Do a piece of work until it says that all is done. Returns False when the time is over before."""
    while not await piece():
        if time_left() <= 0:
            return False
    return True
