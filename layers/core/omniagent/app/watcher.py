"""`TurnWatcher`: finishes dead turns and closes expired ones from inside a server. On Lambda, functions do that."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType

from omniagent.ai.operator import TurnOperator
from omniagent.ai.result import AnswerStream
from omniagent.aio import cancelled
from omniagent.errors import TooManyTurns, TurnInProgress
from omniagent.session.addresses import SessionAddress, SessionDirectory
from omniagent.settings import Settings
from omniagent.turns.lease import TurnRegistry
from omniagent.turns.unbegun import Asked

logger = logging.getLogger(__name__)

MAX_PAUSE_SECONDS = 60.0
"""Maximum backoff after repeated failures of a check, or of one session."""
EXPIRY_SECONDS = 3600.0
"""How often expired turns are looked for. They cost nothing, and the next request for a session closes its own."""
EXPIRED_PER_LOOK = 1000


Verb = Callable[[TurnOperator], Awaitable[AnswerStream | None]]


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

    Once an hour it also closes the turns whose requests have expired unanswered. `runner` creates a session's runner
    from its address, with the same registry. Every server process may have a watcher: the claim decides which one
    continues a turn. Nothing is raised into the server; failures are logged and retried. Closing stops the watcher.
    Turns that it continued run until the store is closed.
    """

    def __init__(
        self,
        sessions: SessionDirectory,
        registry: TurnRegistry,
        runner: Callable[[SessionAddress], Awaitable[TurnOperator]],
        *,
        settings: Settings | None = None,
        interval_seconds: float | None = None,
        max_turns: int = 4,
    ) -> None:
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
                await (await self._runner(address)).settle()
            except Exception as exc:
                details = {"session_key": address.key, "cause": f"{type(exc).__name__}: {exc}"}
                logger.warning("expired turn not closed", extra=details)
        self._expiry_due_at = now + EXPIRY_SECONDS

    async def _candidates(self) -> AsyncIterator[tuple[SessionAddress, Verb]]:
        """Yield the sessions that may need a takeover, and the action. Most of their turns are alive."""
        async for addresses in self._sessions.unfinished(datetime.now(UTC) - self._lease):
            for address in addresses:
                yield address, TurnOperator.continue_turn
        after = ""
        while keys := await self._registry.orphaned(after):
            for key in keys:
                if (orphan := await self._address_of(key)) is not None:
                    yield orphan, TurnOperator.take_up
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
            runner = await self._runner(address)
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

    async def _attend(self, address: SessionAddress, runner: TurnOperator, answer: AnswerStream) -> None:
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
