"""The sweep: finds sessions that need somebody, and deletes what is marked as deleted.

On Lambda a schedule of the run function, in a server a task.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from omniagent.ai.operator import TurnOperator
from omniagent.ai.runner import TimeLeft, until
from omniagent.aio import cancelled
from omniagent.errors import NotFound, OmniAgentError, TooManyTurns
from omniagent.session.ids import new_id
from omniagent.session.manager import SessionAddress, SessionDirectory, SessionManager
from omniagent.settings import Settings

logger = logging.getLogger(__name__)

SESSIONS_PER_SWEEP: Final = 1000
LOOKS_AT_ONCE: Final = 8
TURNS_AT_ONCE: Final = 4
"""How many sessions a server's process takes up at once."""
MIN_TURN_SECONDS: Final = 30.0
"""With less time left, the next turn is left to another process."""
MAX_PAUSE_SECONDS: Final = 60.0
"""Maximum pause after repeated failures."""

OpenRunner = Callable[[SessionAddress], Awaitable[TurnOperator]]


async def finish(runner: TurnOperator, deadline: float = math.inf) -> int:
    """Finish the turn of a session, then answer the messages in line, until a `time.monotonic()` is near.

    Returns how many turns ended here. Raises `TooManyTurns` if the user's limit keeps a message in line.
    """
    ended = 0
    while not ended or time.monotonic() <= deadline - MIN_TURN_SECONDS:
        stream = await runner.take_up(deadline=deadline)
        if stream is None:
            break
        await stream.ended()
        ended += 1
    return ended


class Sweeper:
    """Finishes dead turns, closes expired ones, answers messages in line, deletes.

    `runner` creates a session's runner from its address. Every process may have a sweeper: the session decides who gets
    a turn. A session that fails is logged, and found again by the next sweep.
    """

    def __init__(self, sessions: SessionDirectory, runner: OpenRunner, settings: Settings) -> None:
        self._sessions = sessions
        self._runner = runner
        self._interval = settings.lease_seconds / 2
        self._retention_days = settings.session_retention_days
        self._finishing: dict[str, asyncio.Task[None]] = {}
        """By session key: the tasks that wait for the turns taken up here."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sweep every half lease, in a server. The turns that were taken up run until the store is closed, after this.

        Nothing is raised into the server.
        """
        sweeping = asyncio.create_task(self._sweep_forever(), name="sweeper")
        try:
            yield
        finally:
            await cancelled(sweeping, *self._finishing.values())

    async def sweep(self) -> None:
        """Sweep once, and take up what is found. Errors of the store are raised."""
        for address in await self.find():
            if len(self._finishing) < TURNS_AT_ONCE and address.key not in self._finishing:
                self._finishing[address.key] = asyncio.create_task(self._finish(address), name="swept session")
        await self.delete(until(time.monotonic() + self._interval))  # a long deletion must not delay the next sweep

    async def find(self) -> list[SessionAddress]:
        """Return the sessions with a turn that is dead or has expired, or with messages in line that nobody answers.

        Most of those that are due have a turn that is alive.
        """
        due = await self._sessions.due(SessionManager.now(), SESSIONS_PER_SWEEP)
        slots = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def has_work(address: SessionAddress) -> bool:
            async with slots:
                try:
                    return await (await self._runner(address)).has_work()
                except Exception as exc:
                    _warn("session not looked at", address, exc)
                    return False

        found = await asyncio.gather(*map(has_work, due))
        return [address for address, is_found in zip(due, found, strict=True) if is_found]

    async def delete(self, time_left: TimeLeft) -> int:
        """Delete the users and sessions that are marked as deleted, and return how many deletions failed.

        Sessions without messages for longer than they are kept are marked first. What fails or does not fit into the
        time stays marked.
        """
        sessions = self._sessions
        if self._retention_days:
            await sessions.mark_idle(SessionManager.now() - timedelta(days=self._retention_days))
        users = [SessionAddress(user, new_id()) for user in await sessions.marked_users()]
        marked = [(TurnOperator.erase_marked_user, address) for address in users]
        marked += [(TurnOperator.erase_marked, address) for address in await sessions.marked_sessions()]
        failed = 0
        for erase, address in marked:
            if time_left() <= 0:
                break
            try:
                await erase(await self._runner(address), time_left)
            except OmniAgentError as exc:
                failed += 1
                _warn("deletion failed", address, exc)
        return failed

    async def _sweep_forever(self) -> None:
        failures = 0
        while True:
            pause = min(max(MAX_PAUSE_SECONDS, self._interval), self._interval * 2**failures)
            # Jitter: processes that start together should not sweep together.
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311 - no secret
            try:
                await self.sweep()
                failures = 0
            except Exception as exc:
                failures = min(failures + 1, 10)
                logger.warning("sweep failed", extra={"cause": f"{type(exc).__name__}: {exc}"})

    async def _finish(self, address: SessionAddress) -> None:
        """Do what the session needs. If it fails, the next sweep tries."""
        try:
            await finish(await self._runner(address))
        except (TooManyTurns, NotFound):
            pass
        except Exception as exc:
            _warn("session not taken up", address, exc)
        finally:
            del self._finishing[address.key]


def _warn(message: str, address: SessionAddress, exc: Exception) -> None:
    logger.warning(message, extra={"session_key": address.key, "cause": f"{type(exc).__name__}: {exc}"})
