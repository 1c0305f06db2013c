"""The sweep: finds sessions that need somebody, and deletes what is marked as deleted.

On Lambda a schedule of the run function, in a server a task.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

from omniagent.ai.operator import TurnOperator
from omniagent.ai.result import AnswerStream
from omniagent.ai.runner import TimeLeft, until
from omniagent.aio import cancelled
from omniagent.errors import NotFound, OmniAgentError, TooManyTurns
from omniagent.session.addresses import SessionAddress, SessionDirectory
from omniagent.session.ids import new_id
from omniagent.session.manager import SessionManager
from omniagent.settings import Settings

logger = logging.getLogger(__name__)

SESSIONS_PER_SWEEP = 1000
LOOKS_AT_ONCE = 8
MAX_PAUSE_SECONDS = 60.0
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


class Sweeper:
    """Sweeps from inside a server: finishes dead turns, closes expired ones, answers messages in line, deletes.

    `runner` creates a session's runner from its address. Every server process may have a sweeper: the session decides
    who gets a turn. Nothing is raised into the server; failures are logged and retried. Closing stops the sweeper.
    Turns that it has taken up run until the store is closed.
    """

    def __init__(
        self,
        sessions: SessionDirectory,
        runner: OpenRunner,
        *,
        settings: Settings | None = None,
        interval_seconds: float | None = None,
        max_turns: int = 4,
    ) -> None:
        self._sessions = sessions
        self._runner = runner
        settings = settings or Settings.from_env()
        self._interval = interval_seconds or settings.lease_seconds / 2
        self._retention_days = settings.session_retention_days
        self._max_turns = max_turns
        self._sweeping: asyncio.Task[None] | None = None
        self._turns: dict[str, asyncio.Task[None]] = {}
        """By session key: the tasks that wait for the turns taken up here."""

    def start(self) -> None:
        """Start sweeping every half lease. Does nothing if already started."""
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep_forever(), name="sweeper")

    async def aclose(self) -> None:
        """Stop sweeping. Call it before the store is closed, which ends the running turns."""
        sweeping, self._sweeping = self._sweeping, None
        tasks = [*([sweeping] if sweeping is not None else []), *self._turns.values()]
        if tasks:
            await cancelled(*tasks)

    async def __aenter__(self) -> "Sweeper":
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def sweep(self) -> int:
        """Sweep once and return the number of sessions taken up. Errors of the store are raised."""
        taken = 0
        for address in await sessions_with_work(self._sessions, self._runner):
            if len(self._turns) >= self._max_turns:
                break
            if address.key not in self._turns:
                taken += await self._take_up(address)
        time_left = until(time.monotonic() + self._interval)  # a long deletion must not delay the next sweep for turns
        await erase_marked(self._sessions, self._runner, time_left, retention_days=self._retention_days)
        return taken

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

    async def _take_up(self, address: SessionAddress) -> bool:
        """Do what the session needs. Returns False if another process does, or it failed: then the next sweep tries."""
        try:
            runner = await self._runner(address)
            answer = await runner.take_up()
        except TooManyTurns:
            return False
        except Exception as exc:
            logger.warning("session not taken up", extra={"session_key": address.key, "cause": _cause(exc)})
            return False
        if answer is None:
            return False
        task = asyncio.create_task(self._attend(runner, answer), name="swept session")
        self._turns[address.key] = task
        task.add_done_callback(lambda _: self._turns.pop(address.key, None))
        return True

    async def _attend(self, runner: TurnOperator, answer: AnswerStream) -> None:
        """Wait for the end of a turn, then answer the messages in line behind it."""
        following: AnswerStream | None = answer
        with suppress(TooManyTurns, NotFound):
            while following is not None:
                await following.ended()
                following = await runner.take_up()


def _cause(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"
