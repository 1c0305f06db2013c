"""Deletes sessions and users from every store: the chunk log, the conversations, the counters, and a team's own data.

Everything is marked first, then deleted in batches. Each step is idempotent.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from omniagent.budget.spending import SpendingCounter
from omniagent.errors import DeletionUnfinished, NotFound, OmniAgentError
from omniagent.session.manager import SessionManager, new_id
from omniagent.team_code import team_code
from omniagent.turns.claiming import requested
from omniagent.turns.hooks import EraseHook
from omniagent.turns.keeper import PAUSED_TICKS, LeaseKeeper
from omniagent.turns.lease import ERASE, Claim, TurnRegistry

logger = logging.getLogger(__name__)


async def erase_late_chunks(session: SessionManager, registry: TurnRegistry) -> None:
    """Delete chunks that were logged after their session was deleted: a slow write may arrive at any later time.

    Called by the process that lost the turn. Never raises.
    """
    try:
        held = await registry.running(session.key)
        if (held is None or held.claim.message_id == ERASE) and await session.head() is None:
            while not await registry.erase(session.key):
                pass
    except OmniAgentError as exc:
        logger.warning("late chunks not deleted", extra={"cause": f"{type(exc).__name__}: {exc}"})


@dataclass(frozen=True, slots=True)
class Deletion:
    """Deletes as much as time permits. Each method returns False if there is more to do."""

    registry: TurnRegistry
    counter: SpendingCounter
    hook: EraseHook | None
    time_left: Callable[[], float]

    async def of_session(self, session: SessionManager, *, resume: bool = False) -> bool:
        """Mark the session as erased, then delete its chunks, its messages, its summaries and finally itself.

        `resume` only continues an earlier deletion: a session created under the same id since then is not touched.
        Raises `NotFound`.
        """
        if resume and await session.head() is not None:
            return True
        claim = Claim(session.key, new_id(), ERASE)
        if resume and await self._is_answering(session.key):
            return False  # a turn that is about to be refused, or to create a new session: check again later
        held = await requested(self.registry, claim, self.registry.seize(claim))
        keeper = LeaseKeeper(self.registry, claim, tick_seconds=session.settings.tick_seconds)
        try:
            is_known = resume or await session.mark_erased()
            is_done = await self._erase_log(session.key)
            if is_done and held is not None and held.alive:
                # The turn's owner notices the lost claim at its next tick, and may log one more chunk before that.
                await asyncio.sleep(PAUSED_TICKS * session.settings.tick_seconds)
                is_done = await self._erase_log(session.key)
            if is_done and is_known:
                await self._call_hook(session, session.session_id)
            # The session is deleted last: while it exists and is marked, the deletion can be continued.
            is_done = is_done and await self._repeated(session.erase_some)
        finally:
            await keeper.finish()
        if not is_known:
            raise NotFound
        return is_done

    async def of_user(self, session: SessionManager, *, resume: bool = False) -> bool:
        """Delete the user's sessions, everything else stored under their id, and finally the user.

        `resume` only continues an earlier deletion: a user who has come back since then is not touched.
        """
        if resume and not await session.user_is_erased():
            return True
        # A question whose turn has not begun may be in no session yet. This claim keeps it from being asked again.
        await self.registry.seize(Claim(session.user_id, new_id(), ERASE))
        if not await self._repeated(session.mark_user_erased):
            return False
        is_forgotten = False
        while not is_forgotten:
            if not await self.of_sessions(session) or not await self._erase_log(session.user_id):
                return False
            await self.counter.forget(session.user_id)
            await self._call_hook(session, None)
            is_forgotten = await session.forget_user()
        return True

    async def of_sessions(self, session: SessionManager, *, before: datetime | None = None) -> bool:
        """Delete all sessions of the session's user, or those created before a time."""
        while sessions := await session.sessions_of_user(before=before):
            for one in sessions:
                with suppress(NotFound):  # deleted concurrently
                    if not await self.of_session(one):
                        return False
                if self.time_left() <= 0:
                    return False
        return True

    async def _call_hook(self, session: SessionManager, session_id: str | None) -> None:
        """Call the team's `on_erase`. Skipped if the user's name is no longer stored."""
        if self.hook is None or not session.user:
            return
        with team_code("on_erase failed", DeletionUnfinished):
            await self.hook(session.user, session_id)

    async def _is_answering(self, key: str) -> bool:
        held = await self.registry.running(key)
        return held is not None and held.alive and held.claim.message_id != ERASE

    async def _erase_log(self, owner: str) -> bool:
        return await self._repeated(lambda: self.registry.erase(owner))

    async def _repeated(self, piece: Callable[[], Awaitable[bool]]) -> bool:
        """Repeat a batch until it reports completion. Returns False on timeout."""
        while not await piece():
            if self.time_left() <= 0:
                return False
        return True
