"""Deletes sessions and users from every store: the journals, the conversations, the counters, and a team's own data.

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
from omniagent.protocol import sse
from omniagent.session.live import LiveTurn
from omniagent.session.manager import SessionManager
from omniagent.team_code import team_code
from omniagent.turns.hooks import EraseHook
from omniagent.turns.registry import TurnRegistry
from omniagent.turns.state import Erase, is_dead, transition

logger = logging.getLogger(__name__)


async def erase_late_chunks(session: SessionManager, registry: TurnRegistry) -> None:
    """Delete chunks that were written after their session was deleted: a slow write may arrive at any later time.

    Called by the process that lost the turn. Never raises.
    """
    try:
        if await session.head() is None:
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
        """Mark the session as erased, then delete its journals, its messages, its summaries and finally itself.

        `resume` only continues an earlier deletion: a session created under the same id since then is not touched.
        Raises `NotFound`.
        """
        head = await session.head(erased=True)
        if resume and (head is None or not head.is_erased):
            return True
        while head is not None and not head.is_erased:
            if await session.write(transition(head, Erase(), session.now())):
                break
            head = await session.head(erased=True)
        if head is None:
            raise NotFound
        if head.running is not None:
            await self._stop(session, head.running)
        if not await self._erase_items(session.key):
            return False
        await self._call_hook(session, session.session_id)
        # The session is deleted last: while it exists and is marked, the deletion can be continued.
        return await self._repeated(session.erase_some)

    async def of_user(self, session: SessionManager, *, resume: bool = False) -> bool:
        """Delete the user's sessions, everything else stored under their id, and finally the user.

        `resume` only continues an earlier deletion: a user who has come back since then is not touched.
        """
        store, user_id = session.store, session.user_id
        if resume and not await store.user_is_erased(user_id):
            return True
        if not await self._repeated(lambda: store.mark_user_erased(user_id)):
            return False
        is_forgotten = False
        while not is_forgotten:
            if not await self.of_sessions(session) or not await self._erase_items(user_id):
                return False
            await self.counter.forget(user_id)
            await self._call_hook(session, None)
            is_forgotten = await store.forget_user(user_id)
        return True

    async def of_sessions(self, session: SessionManager, *, before: datetime | None = None) -> bool:
        """Delete all sessions of the session's user, or those created before a time."""
        while keys := await session.store.session_keys(session.user_id, before=before):
            for key in keys:
                with suppress(NotFound):  # deleted concurrently
                    if not await self.of_session(session.sibling(key)):
                        return False
                if self.time_left() <= 0:
                    return False
        return True

    async def _stop(self, session: SessionManager, turn: LiveTurn) -> None:
        """Stop a running turn and wait until its journal has ended, or its process is dead: then both are deleted.

        A signal that is deleted unread would let the turn run on.
        """
        await self.registry.signal(session.key, turn.journal, stop=True)
        lease, tick = session.settings.lease_seconds, session.settings.tick_seconds
        while self.time_left() > 0:
            newest = await self.registry.read(session.key, turn.journal, newest=True)
            has_ended = any(chunk.lines.endswith(sse.DONE_LINE) for chunk in newest)
            if has_ended or is_dead(turn, newest[-1].at if newest else None, session.now(), lease):
                return
            await asyncio.sleep(tick)

    async def _call_hook(self, session: SessionManager, session_id: str | None) -> None:
        """Call the team's `on_erase`. Skipped if the user's name is no longer stored."""
        if self.hook is None or not session.user:
            return
        with team_code("on_erase failed", DeletionUnfinished):
            await self.hook(session.user, session_id)

    async def _erase_items(self, owner: str) -> bool:
        return await self._repeated(lambda: self.registry.erase(owner))

    async def _repeated(self, piece: Callable[[], Awaitable[bool]]) -> bool:
        """Repeat a batch until it reports completion. Returns False on timeout."""
        while not await piece():
            if self.time_left() <= 0:
                return False
        return True
