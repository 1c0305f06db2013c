"""Deletes sessions and users from every store: the journals, the conversations, the counters, and a team's own data.

Everything is marked first, then deleted in batches. Each step is idempotent. The mark is the job: whatever a deletion
leaves behind, because its time is over or a part fails, is still marked, and the sweep deletes it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from omniagent.budget.spending import SpendingCounter
from omniagent.errors import NotFound, OmniAgentError
from omniagent.protocol import sse
from omniagent.session.live import LiveTurn
from omniagent.session.manager import SessionManager
from omniagent.team_code import team_code
from omniagent.turns.registry import TurnRegistry
from omniagent.turns.setup import EraseHook, SessionSetup
from omniagent.turns.state import transition
from omniagent.turns.state_events import Erase

logger = logging.getLogger(__name__)


async def erase_late_chunks(session: SessionManager, registry: TurnRegistry) -> None:
    """Delete chunks that were written after their session was deleted: a slow write may arrive at any later time.

    Called by the process that lost the turn. While the session is still there, whoever deletes it waits for the end of
    this journal. Never raises.
    """
    try:
        if await session.head(erased=True) is None:
            while not await registry.erase(session.key):
                pass
    except OmniAgentError as exc:
        logger.warning("late chunks not deleted", extra={"cause": f"{type(exc).__name__}: {exc}"})


async def mark_session(session: SessionManager) -> None:
    """Mark a session as deleted. Raises `NotFound`."""
    while (head := await session.head(erased=True)) is not None:
        if head.is_erased or await session.write(transition(head, Erase(), session.now())):
            return
    raise NotFound


async def attempted(deletion: Awaitable[bool]) -> bool:
    """Return whether everything is deleted. Whatever fails is left to the sweep."""
    try:
        return await deletion
    except OmniAgentError:
        logger.exception("deletion left to the sweep")
        return False


@dataclass(frozen=True, slots=True)
class Deletion:
    """Deletes as much as time permits. Each method returns False if there is more to do."""

    registry: TurnRegistry
    counter: SpendingCounter
    hook: EraseHook | None
    time_left: Callable[[], float]

    async def of_session(self, session: SessionManager) -> bool:
        """Mark a session, then delete it. Raises `NotFound`."""
        await mark_session(session)
        return await self.of_marked_session(session)

    async def of_marked_session(self, session: SessionManager) -> bool:
        """Delete a session's journals, its messages, its summaries and finally itself. One without a mark is kept."""
        head = await session.head(erased=True)
        if head is None or not head.is_erased:
            return True
        if head.running is not None:
            await self._stop(session, head.running)
        if not await self._repeated(lambda: self.registry.erase(session.key)):
            return False
        await self._call_hook(session, session.session_id)
        # The session is deleted last: while it exists and is marked, the sweep finds it.
        return await self._repeated(lambda: session.store.erase_some(session.key))

    async def of_user(self, session: SessionManager) -> bool:
        """Delete the user's sessions, everything else stored under their id, and finally the user."""
        store, user_id = session.store, session.user_id
        if not await self._repeated(lambda: store.mark_user_erased(user_id)):
            return False
        while keys := await store.session_keys(user_id):
            for key in keys:
                with suppress(NotFound):  # deleted concurrently
                    if not await self.of_session(session.sibling(key)):
                        return False
                if self.time_left() <= 0:
                    return False
        if not await self._repeated(lambda: self.registry.erase(user_id)):
            return False
        await self.counter.forget(user_id)
        await self._call_hook(session, None)
        return await store.forget_user(user_id)

    async def of_marked_user(self, session: SessionManager) -> bool:
        """Delete a user who is marked. One who has come back since is kept."""
        return not await session.store.user_is_erased(session.user_id) or await self.of_user(session)

    async def _stop(self, session: SessionManager, turn: LiveTurn) -> None:
        """Stop a running turn and wait until its journal has ended, or its process is dead: then both are deleted.

        A signal that is deleted unread would let the turn run on.
        """
        setup = SessionSetup(session=session, registry=self.registry)
        await self.registry.signal(session.key, turn.journal, stop=True)
        while self.time_left() > 0:
            newest = await self.registry.read(session.key, turn.journal, newest=True)
            last = newest[-1] if newest else None
            if (last is not None and last.lines.endswith(sse.DONE_LINE)) or setup.is_dead(turn, last):
                return
            await asyncio.sleep(session.settings.tick_seconds)

    async def _call_hook(self, session: SessionManager, session_id: str | None) -> None:
        if self.hook is not None:
            with team_code("on_erase failed"):
                await self.hook(session.user, session_id)

    async def _repeated(self, piece: Callable[[], Awaitable[bool]]) -> bool:
        """Repeat a batch until it reports completion. Returns False on timeout."""
        while not await piece():
            if self.time_left() <= 0:
                return False
        return True
