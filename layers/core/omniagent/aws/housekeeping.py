"""The chores of a deployment: deletions, retention, and turns whose requests have expired.

What the time of one invocation does not suffice for is left to the summary queue.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from omniagent.aws.services import Services
from omniagent.errors import DeletionUnfinished, NoQueue, NotFound, OmniAgentError
from omniagent.persistence.mongo_session import MongoSessionManager

if TYPE_CHECKING:
    from omniagent.ai.runner import Runner

logger = logging.getLogger(__name__)

LATE_COMMIT_SECONDS = 120
"""MongoDB ends a transaction after 60 seconds: what began before a deletion has been committed by then, or never is."""
ANY_SESSION = "any"
RETENTION_PIECE = 100
EXPIRED_PIECE = 1000
CUT_OFF = timedelta(hours=1)
"""A deletion that is not done by then has been cut off."""
TimeLeft = Callable[[], float]


class Housekeeping:
    """Does the chores with the connections of the process."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def erase_session(self, key: str, *, time_left: TimeLeft, resume: bool = False) -> None:
        """Delete a session with everything in it. What the time does not suffice for is left to the queue.

        Raises `NotFound`, and `DeletionUnfinished` where there is no queue: the same call again goes on. `resume` is
        for the queue, which may deliver late and twice: a session made under the same id since is left alone.
        """
        runner = await self._eraser(key)
        if not await _attempted(runner.erase(time_left=time_left, resume=resume), resume):
            await self._leave(self._services.summary_queue.send_erasure(key))

    async def erase_user(self, user_id: str, *, time_left: TimeLeft) -> None:
        """Delete a user with all their sessions and whatever else is stored of them, in the same way.

        A transaction that cannot see the deletion yet may still make a session, and its process may die before it
        looks again. So the queue looks once more when no such transaction can be alive.
        """
        session = await self._session_to_erase(f"{user_id}:{ANY_SESSION}")
        await session.mark_user_erased()
        before = datetime.now(UTC)
        with suppress(NoQueue):
            await self._services.summary_queue.send_user_erasure(user_id, before, delay_seconds=LATE_COMMIT_SECONDS)
        if not await _attempted(self._services.runner_for(session).erase_user(time_left=time_left)):
            await self._leave(self._services.summary_queue.send_user_erasure(user_id, before))

    async def resume_user_erasure(self, user_id: str, before: datetime | None, *, time_left: TimeLeft) -> None:
        """Go on with the deletion of a user that began `before`, or look for what it could not see.

        What a user has done who came back since stays.
        """
        runner = await self._eraser(f"{user_id}:{ANY_SESSION}")
        is_done = await runner.erase_user(time_left=time_left, resume=True)
        if is_done and before is not None:
            is_done = await runner.erase_leftovers(before, time_left=time_left)
        if not is_done:
            await self._leave(self._services.summary_queue.send_user_erasure(user_id, before or datetime.now(UTC)))

    async def apply_retention(self, *, time_left: TimeLeft) -> int:
        """Delete the sessions that were left longer ago than the setting says. Returns how many were deleted.

        What the time does not suffice for is left to the queue. Deletions that were cut off are finished, too.
        """
        days = self._services.settings.session_retention_days
        if not days:
            return 0
        catalog, before = await self._services.catalog(), datetime.now(UTC) - timedelta(days=days)
        deleted = await self._erase_marked(await catalog.cut_off(datetime.now(UTC) - CUT_OFF), time_left)
        while time_left() > 0:
            keys = await catalog.mark_idle(before, RETENTION_PIECE)
            deleted += await self._erase_marked(keys, time_left)
            if len(keys) < RETENTION_PIECE:
                return deleted
        with suppress(NoQueue):
            await self._services.summary_queue.send_retention()
        return deleted

    async def close_expired(self, *, time_left: TimeLeft) -> int:
        """Close the turns whose requests have expired unanswered. Returns how many were closed.

        A session that fails is logged and tried again with the next call. It does not keep the others open.
        """
        closed = 0
        for address in await (await self._services.store()).expired(EXPIRED_PIECE):
            if time_left() <= 0:
                break
            try:
                await (await self._services.runner_of_key(address.key)).settle()
                closed += 1
            except NotFound:
                continue  # deleted meanwhile
            except OmniAgentError as exc:
                logger.warning("expired turn not closed", extra={"session_key": address.key, "cause": str(exc)})
        return closed

    async def _eraser(self, key: str) -> "Runner":
        return self._services.runner_for(await self._session_to_erase(key))

    async def _session_to_erase(self, key: str) -> MongoSessionManager:
        return await MongoSessionManager.to_erase(await self._services.store(), key, settings=self._services.settings)

    async def _erase_marked(self, keys: Sequence[str], time_left: TimeLeft) -> int:
        """Finish the deletion of marked sessions. One that fails stays marked, and is tried again later."""
        deleted = 0
        for key in keys:
            try:
                await self.erase_session(key, time_left=time_left, resume=True)
                deleted += 1
            except OmniAgentError as exc:
                logger.warning("session not deleted", extra={"session_key": key, "cause": str(exc)})
        return deleted

    async def _leave(self, sending: Awaitable[None]) -> None:
        """Leave the rest of a deletion to the queue."""
        try:
            await sending
        except NoQueue as exc:
            raise DeletionUnfinished from exc


async def _attempted(deletion: Awaitable[bool], resume: bool = False) -> bool:
    """Return whether all is deleted. What a team's hook could not delete is left to the queue, which repeats it."""
    try:
        return await deletion
    except DeletionUnfinished as exc:
        if resume:
            raise  # by the queue itself: the job is delivered again, and at last is a dead letter
        logger.exception("deletion left to the queue", extra={"cause": str(exc)})
        return False
