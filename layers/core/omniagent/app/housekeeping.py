"""The chores of a deployment: deletions, retention, models that end.

If one invocation is too short, the rest of the work is sent to the deletion queue.
"""

import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from omniagent.app.application import Application
from omniagent.errors import DeletionUnfinished, NoQueue, OmniAgentError
from omniagent.persistence.mongo_session import MongoSessionManager

if TYPE_CHECKING:
    from omniagent.ai.operator import TurnOperator
    from omniagent.ai.runner import TimeLeft

logger = logging.getLogger(__name__)

LATE_COMMIT_SECONDS = 120
"""MongoDB aborts transactions after 60 seconds: one that began before a deletion is committed or aborted by then."""
ANY_SESSION = "any"
RETENTION_PIECE = 100
CUT_OFF = timedelta(hours=1)
"""A deletion that takes longer was interrupted."""


class Housekeeping:
    """Runs the chores of an application."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def erase_session(self, key: str, *, time_left: "TimeLeft", resume: bool = False) -> None:
        """Delete a session with everything in it. If the time is too short, the rest is queued.

        Raises `NotFound`, and `DeletionUnfinished` if there is no queue: repeating the call continues the deletion.
        `resume` is for queued jobs, which may arrive late and twice: a newer session with the same id is left alone.
        """
        runner = await self._eraser(key)
        if not await _attempted(runner.erase_session(time_left, resume=resume), resume):
            await self._leave(self._application.platform.deletion_queue.send_session(key))

    async def erase_user(self, user_id: str, *, time_left: "TimeLeft") -> None:
        """Delete a user with all their sessions and everything else stored about them, in the same way.

        A transaction that does not see the deletion yet may still create a session, and its process may die before
        it checks again. So a delayed job checks once more, when no such transaction can be open.
        """
        session = await self._session_to_erase(f"{user_id}:{ANY_SESSION}")
        await session.store.mark_user_erased(user_id)
        before = datetime.now(UTC)
        with suppress(NoQueue):
            await self._application.platform.deletion_queue.send_user(
                user_id, before, delay_seconds=LATE_COMMIT_SECONDS
            )
        if not await _attempted(self._application.runner_for(session).erase_user(time_left)):
            await self._leave(self._application.platform.deletion_queue.send_user(user_id, before))

    async def resume_user_erasure(self, user_id: str, before: datetime | None, *, time_left: "TimeLeft") -> None:
        """Continue the deletion of a user that began at `before`, or look for sessions that it could not see.

        Sessions that the user has created since are kept.
        """
        runner = await self._eraser(f"{user_id}:{ANY_SESSION}")
        is_done = await runner.erase_user(time_left, resume=True)
        if is_done and before is not None:
            is_done = await runner.erase_leftovers(before, time_left)
        if not is_done:
            await self._leave(self._application.platform.deletion_queue.send_user(user_id, before or datetime.now(UTC)))

    async def apply_retention(self, *, time_left: "TimeLeft") -> int:
        """Delete sessions that were unused for `session_retention_days`. Returns how many were deleted.

        Interrupted deletions are finished, too. If the time is too short, the rest is queued.
        """
        days = self._application.settings.session_retention_days
        if not days:
            return 0
        catalog, before = await self._application.catalog(), datetime.now(UTC) - timedelta(days=days)
        deleted = await self._erase_marked(await catalog.cut_off(datetime.now(UTC) - CUT_OFF), time_left)
        while time_left() > 0:
            keys = await catalog.mark_idle(before, RETENTION_PIECE)
            deleted += await self._erase_marked(keys, time_left)
            if len(keys) < RETENTION_PIECE:
                return deleted
        with suppress(NoQueue):
            await self._application.platform.deletion_queue.send_retention()
        return deleted

    async def check_model_ends(self) -> list[str]:
        """Log and count the models that end soon, and return their names. If a server fails, that is only logged."""
        from omniagent.ai.model_ends import announced_ends, models_of

        application = self._application
        try:
            ends = await announced_ends(
                application.providers, models_of(application.project.all_agents, application.settings)
            )
        except OmniAgentError as exc:
            logger.warning("model ends not checked", extra={"cause": str(exc)})
            return []
        for end in ends:
            logger.warning("model ends soon", extra=asdict(end))
        application.platform.emit_ending_models(len(ends))
        return [end.model for end in ends]

    async def _eraser(self, key: str) -> "TurnOperator":
        return self._application.runner_for(await self._session_to_erase(key))

    async def _session_to_erase(self, key: str) -> MongoSessionManager:
        return await MongoSessionManager.to_erase(
            await self._application.store(), key, settings=self._application.settings
        )

    async def _erase_marked(self, keys: Sequence[str], time_left: "TimeLeft") -> int:
        """Finish the deletion of marked sessions. One that fails stays marked and is retried later."""
        deleted = 0
        for key in keys:
            try:
                await self.erase_session(key, time_left=time_left, resume=True)
                deleted += 1
            except OmniAgentError as exc:
                logger.warning("session not deleted", extra={"session_key": key, "cause": str(exc)})
        return deleted

    async def _leave(self, sending: Awaitable[None]) -> None:
        """Queue the rest of a deletion. Raises `DeletionUnfinished` if there is no queue."""
        try:
            await sending
        except NoQueue as exc:
            raise DeletionUnfinished from exc


async def _attempted(deletion: Awaitable[bool], resume: bool = False) -> bool:
    """Return whether everything is deleted. If the team's hook failed, it is not, and a queued job repeats it."""
    try:
        return await deletion
    except DeletionUnfinished as exc:
        if resume:
            raise  # in a queued job: SQS redelivers it, and finally moves it to the dead-letter queue
        logger.exception("deletion left to the queue", extra={"cause": str(exc)})
        return False
