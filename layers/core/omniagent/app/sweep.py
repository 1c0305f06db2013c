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
from functools import partial
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


async def sessions_with_work(sessions: SessionDirectory, runner: OpenRunner) -> list[SessionAddress]:
    """Return the sessions with a turn that is dead or has expired, or with messages in line that nobody answers.

    Most of those that are due have a turn that is alive. A session that fails is logged, and found again next time.
    """
    due = await sessions.due(SessionManager.now(), SESSIONS_PER_SWEEP)
    slots = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def has_work(address: SessionAddress) -> bool:
        async with slots:
            try:
                return await (await runner(address)).has_work()
            except Exception as exc:
                logger.warning("session not looked at", extra={"session_key": address.key, "cause": _cause(exc)})
                return False

    found = await asyncio.gather(*map(has_work, due))
    return [address for address, is_found in zip(due, found, strict=True) if is_found]


async def erase_marked(
    sessions: SessionDirectory, runner: OpenRunner, time_left: TimeLeft, *, retention_days: int = 0
) -> int:
    """Delete the users and sessions that are marked as deleted, and return how many deletions failed.

    Sessions without messages for `retention_days` are marked first. What fails or does not fit into the time stays
    marked: the next sweep tries again.
    """
    if retention_days:
        await sessions.mark_idle(SessionManager.now() - timedelta(days=retention_days))
    deletions = [
        *((SessionAddress(user, new_id()), TurnOperator.erase_marked_user) for user in await sessions.marked_users()),
        *((address, TurnOperator.erase_marked) for address in await sessions.marked_sessions()),
    ]
    failed = 0
    for address, erase in deletions:
        if time_left() <= 0:
            break
        try:
            await erase(await runner(address), time_left)
        except OmniAgentError as exc:
            failed += 1
            logger.warning("deletion failed", extra={"session_key": address.key, "cause": _cause(exc)})
    return failed


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
    """Sweeps from inside a server: finishes dead turns, closes expired ones, answers messages in line, deletes.

    `runner` creates a session's runner from its address. Every server process may have a sweeper: the session decides
    who gets a turn. Nothing is raised into the server; failures are logged and retried.
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
        """Sweep every half lease. The turns that were taken up run until the store is closed, after this."""
        sweeping = asyncio.create_task(self._sweep_forever(), name="sweeper")
        try:
            yield
        finally:
            await cancelled(sweeping, *self._finishing.values())

    async def sweep(self) -> None:
        """Sweep once. Errors of the store are raised."""
        for address in await sessions_with_work(self._sessions, self._runner):
            if len(self._finishing) < TURNS_AT_ONCE and address.key not in self._finishing:
                task = asyncio.create_task(self._finish(address), name="swept session")
                self._finishing[address.key] = task
                task.add_done_callback(partial(self._ended, address.key))
        time_left = until(time.monotonic() + self._interval)  # a long deletion must not delay the next sweep for turns
        await erase_marked(self._sessions, self._runner, time_left, retention_days=self._retention_days)

    def _ended(self, key: str, _: asyncio.Task[None]) -> None:
        self._finishing.pop(key, None)

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
                logger.warning("sweep failed", extra={"cause": _cause(exc)})

    async def _finish(self, address: SessionAddress) -> None:
        """Do what the session needs. If it fails, the next sweep tries."""
        try:
            await finish(await self._runner(address))
        except (TooManyTurns, NotFound):
            pass
        except Exception as exc:
            logger.warning("session not taken up", extra={"session_key": address.key, "cause": _cause(exc)})


def _cause(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"
