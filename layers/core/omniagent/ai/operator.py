"""`TurnOperator`: a runner with the verbs that only a function, a server or an operator needs."""

from collections.abc import Mapping

from omniagent.ai.result import AnswerStream
from omniagent.ai.runner import Runner, RunnerOptions, TimeLeft, traced
from omniagent.budget.spending import Spending, agent_account
from omniagent.session.manager import SessionManager
from omniagent.session.query import Query
from omniagent.session.summaries import forever
from omniagent.settings import Budget, Busy
from omniagent.turns.engine.submit import Submission
from omniagent.turns.setup import RuntimeHooks, call_back
from omniagent.turns.state import is_over
from omniagent.turns.watch.takeover import take_up, withdraw


class TurnOperator(Runner):
    """Runs the turns of a session on behalf of others: accepted and dead ones, and deletions."""

    @traced("accept")
    async def accept(self, query: str | Query, *, busy: Busy | None = None) -> str:
        """Store a message that is answered later, with `take_up`. It is durable, in line. Returns its id.

        Idempotent by id. `TurnHooks.on_work` is called to have it answered; if that fails, the sweep finds it. Raises
        every refusal that can be known now.
        """
        checked = Query.checked(query, busy, self._session.settings)
        await Submission(await self._setup(checked.agent), checked, self._limit(None)).accept()
        return checked.message_id

    @traced("take_up")
    async def take_up(self, *, deadline: float | None = None) -> AnswerStream | None:
        """Do what the session needs next: finish a turn whose process died, close expired requests, or answer the first
        message in line. None if there is nothing to do, or another process does it.

        Completed model calls and tools are not repeated. A tool that was running is run again only with `retry_safe`.
        A turn that cannot be continued is closed as interrupted. Raises `TooManyTurns` if the user's limit keeps a
        message in line.
        """
        answer = await take_up(await self._setup(), self._limit(deadline))
        return None if answer is None else self._stream(answer)

    async def has_work(self) -> bool:
        """Whether `take_up` would find something to do."""
        head = await self._session.head()
        if head is None or head.turn is None:
            return head is not None and bool(head.queue)
        if head.running is not None:
            return not await self._state.is_alive(head.running)
        return is_over(head, self._session.now())

    async def withdraw(self, answer_id: str) -> None:
        """Close the turn that waits with this answer: it is about to be deleted. Then `wake` those in line."""
        await withdraw(self._state, answer_id)

    async def wake(self) -> None:
        """Have the messages in line answered after the answer that blocked them was deleted."""
        if await self.has_work():
            await call_back(self._hooks.on_work)

    async def count_request(self) -> None:
        """Count a request whose model calls are made elsewhere. Raises `BudgetExceeded`."""
        await self._resolve()
        await self._meter().admit()

    async def spending(self) -> Spending | None:
        """Read what the user has spent today. None without a limit: nothing is counted then."""
        return await self._options.counter.read(self._session.user_id) if self._budget.is_limited else None

    async def agent_spending(self) -> Mapping[str, tuple[Budget, Spending]]:
        """Read the budgets of agents that have one of their own, and what the user has spent on each today."""
        counter, agents = self._options.counter, self._options.project.all_agents
        return {
            name: (agent.budget, await counter.read(agent_account(self._session.user_id, name)))
            for name, agent in agents.items()
            if agent.budget is not None
        }

    @property
    def budget(self) -> Budget:
        """The user's spending limits."""
        return self._budget

    @traced("erase")
    async def erase_session(self, time_left: TimeLeft = forever) -> bool:
        """Delete the session with everything in it. A running turn is discarded. Raises `NotFound`.

        Returns False if the time was too short or a part failed. The session is invisible all the same, and the sweep
        deletes the rest.
        """
        from omniagent.turns.watch.deletion import attempted, mark_session  # no turn needs it

        await mark_session(self._session)
        return await attempted(self.erase_marked(time_left))

    @traced("erase")
    async def erase_user(self, time_left: TimeLeft = forever) -> bool:
        """Delete the session's user with all their sessions, in the same way. Idempotent.

        In MongoDB the user stays marked for two minutes, in which nothing new of theirs can begin. Then the sweep looks
        once more for sessions that were being created, and deletes the user.
        """
        from omniagent.turns.watch.deletion import attempted

        await self._session.store.mark_user_erased(self._session.user_id)
        return await attempted(self._deletion(time_left).of_user(self._session))

    async def erase_marked(self, time_left: TimeLeft = forever) -> bool:
        """Delete the rest of the session if it is marked as deleted. A new one with the same id is kept."""
        return await self._deletion(time_left).of_marked_session(self._session)

    async def erase_marked_user(self, time_left: TimeLeft = forever) -> bool:
        """Delete the rest of the session's user, in the same way."""
        return await self._deletion(time_left).of_marked_user(self._session)


class OwnOperator(TurnOperator):
    """That of an application for one request. Its options and hooks are the package's own, so nothing is checked."""

    def __init__(self, options: RunnerOptions, session: SessionManager, hooks: RuntimeHooks) -> None:
        self._serve(options, session, hooks)
