"""`TurnOperator`: a runner with the verbs that only a function, a server or an operator needs."""

from collections.abc import Awaitable, Callable
from datetime import datetime

from omniagent.ai.result import AnswerStream
from omniagent.ai.runner import Runner, TimeLeft, forever
from omniagent.budget.spending import Spending
from omniagent.session.manager import SessionHead
from omniagent.settings import Budget, Busy
from omniagent.turns.hooks import call_back
from omniagent.turns.query import Query


class TurnOperator(Runner):
    """Runs the turns of a session on behalf of others: queued, accepted and dead ones, and deletions in pieces."""

    async def accept(
        self,
        query: str | Query,
        *,
        busy: Busy | None = None,
        on_posted: Callable[[str], Awaitable[None]] | None = None,
    ) -> str:
        """Store a message that is answered later, with `run_accepted`. It is durable, in the session's inbox.

        Returns the message's id. Idempotent by id. `on_posted` is called with the id the first time, to have the
        message answered. If it raises, the message is removed, unless another turn's watch answers it anyway. Sent
        again, a message that nobody answers yet gets a watch. Raises every refusal that can be known now.
        """
        from omniagent.turns.acceptance import Acceptance  # needed only for background messages

        checked = self._checked(query, busy)
        await Acceptance(self._setup(), checked).accept(on_posted)
        return checked.message_id

    async def run_accepted(self, message_id: str, *, deadline: float | None = None) -> AnswerStream | None:
        """Run the turn of an accepted message, or one before it. None if the message is no longer queued.

        Raises `TurnInProgress` while another process holds the session, or the error that refuses the turn; the
        message then stays queued.
        """
        from omniagent.turns.acceptance import run_accepted

        answer = await run_accepted(self._setup(), message_id, self._limit(deadline))
        return None if answer is None else await self._ready(answer)

    async def continue_turn(self, *, deadline: float | None = None) -> AnswerStream | None:
        """Finish the session's turn if its process died. A question that was never stored is asked again.

        None if it runs, has ended, or another process continues it.

        Completed model calls and tools are not repeated. A tool that was running is run again only with `retry_safe`.
        A turn that cannot be continued is closed as interrupted.
        """
        return await self._continue_turn(deadline)

    async def run_next(self, *, deadline: float | None = None) -> AnswerStream | None:
        """Run the session's first queued message if its own process died.

        None if none is queued, or another process runs it.
        """
        return await self._run_next(deadline)

    async def take_up(self, *, deadline: float | None = None) -> AnswerStream | None:
        """Continue the session's turn if its process died; otherwise run a queued message whose process died.

        None if there is neither, or another process is doing it.
        """
        return await self.continue_turn(deadline=deadline) or await self.run_next(deadline=deadline)

    async def look(self, turn_id: str, attempt: int = 0, *, patience_seconds: float = 0.0) -> float | None:
        """Check a turn for the `attempt`th process that works on it, as `TurnHooks.on_begin` reported.

        Returns None if there is nothing to do: the turn was refused or has ended, waits for a human, or a later process
        or turn has begun, which has its own watch. Returns 0 if it needs a takeover: its process died, or that of a
        queued message. Otherwise returns the seconds until the next check, after up to `patience_seconds` for a
        hand-over.
        """
        from omniagent.turns.takeover import next_look  # needed only to watch turns

        return await next_look(self._session, self._registry, turn_id, attempt, patience_seconds)

    async def wake(self) -> None:
        """Have the queued messages run after the answer that blocked them was deleted, unless a turn has begun."""
        if await self.look("") is not None:  # a request that only replays an answer may hold the session
            await call_back(self._hooks.on_wake)

    async def settle(self) -> SessionHead | None:
        """Read the session, after closing a turn whose process died. None if it does not exist."""
        return await self._settle()

    async def count_request(self) -> None:
        """Count a request whose model calls are made elsewhere. Raises `BudgetExceeded`."""
        await self._meter().admit()

    async def spending(self) -> Spending | None:
        """Read what the user has spent today. None without a limit: nothing is counted then."""
        return await self._counter.read(self._session.user_id) if self._budget.is_limited else None

    @property
    def budget(self) -> Budget:
        """The user's spending limits."""
        return self._budget

    async def erase_session(self, time_left: TimeLeft = forever, *, resume: bool = False) -> bool:
        """Delete the session with everything in it. A running turn is discarded. Raises `NotFound`.

        Returns False if it ran out of time: the session is already invisible, and another call continues. `resume` only
        continues an earlier deletion: a session created under the same id since then is not touched.
        """
        return await self._deletion(time_left).of_session(self._session, resume=resume)

    async def erase_user(self, time_left: TimeLeft = forever, *, resume: bool = False) -> bool:
        """Delete the session's user with all their sessions, in the same way. Idempotent."""
        return await self._deletion(time_left).of_user(self._session, resume=resume)

    async def erase_leftovers(self, before: datetime, time_left: TimeLeft = forever) -> bool:
        """Delete sessions of the user that were created before a time, when the user was deleted.

        A transaction in progress at that time may have created one afterwards. Later sessions are kept.
        """
        return await self._deletion(time_left).of_sessions(self._session, before=before)
