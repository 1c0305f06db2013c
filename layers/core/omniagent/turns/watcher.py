"""`TurnWatcher`: finishes turns whose process died, and closes those whose requests have expired, from inside a server
process. On Lambda, the watch and run functions do that.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Protocol

from omniagent.ai.result import AnswerStream
from omniagent.aio import cancelled
from omniagent.errors import ConfigurationError, TooManyTurns, TurnInProgress
from omniagent.session.addresses import SessionAddress, SessionDirectory
from omniagent.session.manager import SessionHead
from omniagent.settings import Settings
from omniagent.turns.lease import TurnRegistry
from omniagent.turns.unbegun import Asked

logger = logging.getLogger(__name__)

MAX_PAUSE_SECONDS = 60.0
"""Maximum backoff after repeated failures of a check, or of one session."""
EXPIRY_SECONDS = 3600.0
"""How often expired turns are looked for. They cost nothing, and the next request for a session closes its own."""
EXPIRED_PER_LOOK = 1000


class TurnRunner(Protocol):
    """What the watcher needs of a `Runner`."""

    async def continue_turn(self) -> AnswerStream | None:
        """Finish the session's turn if its process died."""

    async def run_next(self) -> AnswerStream | None:
        """Run the session's first queued message, unless another process does."""

    async def settle(self) -> SessionHead | None:
        """Close the session's turn if its requests have expired."""


Verb = Callable[[TurnRunner], Awaitable[AnswerStream | None]]


async def _continue(runner: TurnRunner) -> AnswerStream | None:
    return await runner.continue_turn()


async def _take_up(runner: TurnRunner) -> AnswerStream | None:
    return await runner.continue_turn() or await runner.run_next()


@dataclass(slots=True)
class _Failures:
    count: int = 0
    retry_at: float = 0.0

    def note(self, pause_seconds: float) -> None:
        """Exponential backoff."""
        self.count += 1
        pause = min(MAX_PAUSE_SECONDS, pause_seconds * 2 ** min(self.count, 10))
        self.retry_at = asyncio.get_running_loop().time() + pause


class TurnWatcher:
    """Finishes turns whose process died, and runs queued messages whose process died.

    Once an hour it also closes the turns whose requests have expired unanswered.

    async with TurnWatcher(store, registry, lambda at: Runner(agent, session_of(at), registry=registry)):
        ...  # serve

    `runner` creates a session's runner from its address, with the same registry. Every server process may have a
    watcher: the claim decides which one continues a turn. Nothing is raised into the server; failures are logged and
    retried. Closing stops the watcher. Turns that it continued run until the store is closed.
    """

    def __init__(
        self,
        sessions: SessionDirectory,
        registry: TurnRegistry,
        runner: Callable[[SessionAddress], TurnRunner],
        *,
        settings: Settings | None = None,
        interval_seconds: float | None = None,
        max_turns: int = 4,
    ) -> None:
        _check(sessions, registry, interval_seconds, max_turns)
        lease_seconds = (settings or Settings.from_env()).lease_seconds
        self._sessions = sessions
        self._registry = registry
        self._runner = runner
        self._lease = timedelta(seconds=lease_seconds)
        self._interval = interval_seconds or lease_seconds / 2
        self._max_turns = max_turns
        self._looking: asyncio.Task[None] | None = None
        self._turns: dict[str, asyncio.Task[None]] = {}
        """By session key: the tasks that wait for the turns taken over here."""
        self._failures: dict[str, _Failures] = {}
        self._expiry_due_at = 0.0

    def start(self) -> None:
        """Start checking every half lease. Does nothing if already started."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._watch(), name="turn-watcher")

    async def aclose(self) -> None:
        """Stop checking. Call it before the store is closed, which ends the running turns."""
        looking, self._looking = self._looking, None
        tasks = [*([looking] if looking is not None else []), *self._turns.values()]
        if tasks:
            await cancelled(*tasks)

    async def __aenter__(self) -> "TurnWatcher":
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def look(self) -> int:
        """Check once and return the number of sessions taken over. Errors of the store and the registry are raised."""
        taken = await self._take_up_dead()
        await self._close_expired()
        return taken

    async def _take_up_dead(self) -> int:
        taken, seen = 0, set[str]()
        async for address, verb in self._candidates():
            seen.add(address.key)
            if len(self._turns) >= self._max_turns:
                return taken
            if address.key not in self._turns and not self._is_postponed(address.key):
                taken += await self._take_up(address, verb)
        self._failures = {key: failures for key, failures in self._failures.items() if key in seen}
        return taken

    async def _close_expired(self) -> None:
        """Close the turns whose requests have expired. One that fails is tried again when this is due again."""
        now = asyncio.get_running_loop().time()
        if now < self._expiry_due_at:
            return
        for address in await self._sessions.expired(EXPIRED_PER_LOOK):
            try:
                await self._runner(address).settle()
            except Exception as exc:
                details = {"session_key": address.key, "cause": f"{type(exc).__name__}: {exc}"}
                logger.warning("expired turn not closed", extra=details)
        self._expiry_due_at = now + EXPIRY_SECONDS

    async def _candidates(self) -> AsyncIterator[tuple[SessionAddress, Verb]]:
        """Yield the sessions that may need a takeover, and the action. Most of their turns are alive."""
        async for addresses in self._sessions.unfinished(datetime.now(UTC) - self._lease):
            for address in addresses:
                yield address, _continue
        after = ""
        while keys := await self._registry.orphaned(after):
            for key in keys:
                if (orphan := await self._address_of(key)) is not None:
                    yield orphan, _take_up
            after = keys[-1]

    async def _address_of(self, key: str) -> SessionAddress | None:
        """Return a session's address. If the session does not exist yet, only its claim has the user."""
        if (known := await self._sessions.address_of(key)) is not None:
            return known
        held = await self._registry.running(key)
        return None if held is None else Asked.address(held.claim)

    async def _watch(self) -> None:
        failures = 0
        while True:
            pause = min(max(MAX_PAUSE_SECONDS, self._interval), self._interval * 2**failures)
            # Jitter: processes that start together should not check together.
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311 - no secret
            try:
                await self.look()
                failures = 0
            except Exception as exc:
                failures = min(failures + 1, 10)
                logger.warning("dead turns not looked for", extra={"cause": f"{type(exc).__name__}: {exc}"})

    async def _take_up(self, address: SessionAddress, verb: Verb) -> bool:
        """Continue the session's turn, or run its queued message. Returns False if there is nothing to do."""
        try:
            runner = self._runner(address)
            answer = await verb(runner)
        except Exception as exc:
            self._note_failure(address, exc)
            return False
        self._failures.pop(address.key, None)
        if answer is None:
            return False
        task = asyncio.create_task(self._attend(address, runner, answer), name="watched turn")
        self._turns[address.key] = task
        task.add_done_callback(lambda _: self._turns.pop(address.key, None))
        return True

    async def _attend(self, address: SessionAddress, runner: TurnRunner, answer: AnswerStream) -> None:
        """Wait for the end of a turn, then run the messages queued behind it."""
        following: AnswerStream | None = answer
        try:
            while following is not None:
                await following.ended()
                following = await runner.run_next()
        except Exception as exc:
            self._note_failure(address, exc)

    def _is_postponed(self, key: str) -> bool:
        failures = self._failures.get(key)
        return failures is not None and asyncio.get_running_loop().time() < failures.retry_at

    def _note_failure(self, address: SessionAddress, exc: Exception) -> None:
        failures = self._failures.setdefault(address.key, _Failures())
        failures.note(self._interval)
        details = {"session_key": address.key, "failures": failures.count, "cause": f"{type(exc).__name__}: {exc}"}
        if isinstance(exc, TooManyTurns | TurnInProgress):
            logger.info("session not taken up", extra=details)  # the user's limit, or another process: retried later
        else:
            logger.warning("session not taken up", extra=details, exc_info=exc)


def _check(sessions: SessionDirectory, registry: TurnRegistry, interval_seconds: float | None, max_turns: int) -> None:
    if isinstance(sessions, type) or not hasattr(sessions, "outlives_process"):
        raise ConfigurationError(f"TurnWatcher(sessions, …): {sessions!r:.100} is not a store of sessions")
    if not isinstance(registry, TurnRegistry):
        raise ConfigurationError(f"TurnWatcher(…, registry, …) must be a TurnRegistry, not {registry!r:.100}")
    if sessions.outlives_process and not registry.outlives_process:
        raise ConfigurationError(
            f"TurnWatcher(registry={type(registry).__name__}): this registry forgets with its process which turns run, "
            "and what they have done. Use one that outlives it, such as MongoTurnRegistry"
        )
    if max_turns < 1 or (interval_seconds is not None and not interval_seconds > 0):
        raise ConfigurationError("TurnWatcher(interval_seconds=…, max_turns=…): both must be more than 0")
