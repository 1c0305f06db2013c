"""Deletes a session: takes its claim, so that nothing writes any more, then deletes in pieces."""

import asyncio
from collections.abc import Callable

from omniagent.errors import NotFound
from omniagent.session.identity import new_id
from omniagent.session.manager import SessionManager
from omniagent.turns.keeper import LeaseKeeper
from omniagent.turns.lease import ERASE, Claim, TurnRegistry


async def erase_session(session: SessionManager, registry: TurnRegistry, time_left: Callable[[], float]) -> bool:
    """Mark the session as erased, then delete its messages, its summaries, its chunks and itself.

    Returns False when the time is over before all is deleted. Every step can be repeated.
    """
    claim = Claim(session.key, new_id(), ERASE)
    tick_seconds = session.settings.tick_seconds
    held = await registry.seize(claim)
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
