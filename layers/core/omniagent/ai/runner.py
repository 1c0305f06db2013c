"""`Runner`: what a user of the library does with a session: run, stream, reply, resume, stop, read, rate, erase.

runner = Runner(agent, MongoSessionManager(store, "alice", "demo"))
async for event in runner.run_stream("Hello"):
    ...
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from omniagent.ai.agent import Agent
from omniagent.ai.providers import ProviderPool, chain_of, without_vendor
from omniagent.ai.providers.llm_provider import LLMProvider, Overrides, check_provider
from omniagent.ai.result import AnswerSource, AnswerStream, Output_co, RunResult, StreamPosition
from omniagent.budget.spending import MemoryCounter, Meter, SpendingCounter, agent_account
from omniagent.errors import ConfigurationError, InvalidOutput, InvalidRequest, NotFound, ToolFailed, TurnInProgress
from omniagent.messages import Feedback
from omniagent.project import Project
from omniagent.session.ids import new_id
from omniagent.session.live import SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.session.query import Query
from omniagent.session.summaries import Summarized, SummaryPipeline, forever, name_session
from omniagent.settings import Budget, Busy, Settings
from omniagent.tracing import bind_context, record_feedback, trace_root
from omniagent.turns.engine.following import just_ended, resumed
from omniagent.turns.engine.submit import Submission
from omniagent.turns.engine.tool_loop import last_text
from omniagent.turns.registry import MemoryRegistry, TurnRegistry
from omniagent.turns.setup import RuntimeHooks, SessionSetup, TimeLimit, TurnHooks, TurnSetup
from omniagent.turns.state import Moved
from omniagent.turns.state_events import Switch
from omniagent.turns.watch.takeover import stop_session
from omniagent.validation import check, check_declared, check_rule

if TYPE_CHECKING:
    from omniagent.ai.approvals import Approver, ApproverRule, ToolReply, ToolRequest
    from omniagent.turns.watch.deletion import Deletion

TimeLeft = Callable[[], float]
"""Returns the seconds left for a long operation."""

_process_registry = MemoryRegistry()
_process_counter = MemoryCounter()


def until(end: float) -> TimeLeft:
    """Return what says how much time is left until a `time.monotonic()`."""
    return lambda: end - time.monotonic()


Verb = TypeVar("Verb", bound=Callable[..., Coroutine[Any, Any, Any]])


def traced(name: str) -> Callable[[Verb], Verb]:
    """Make a verb of a runner one trace with the session's ids, unless it is part of a request or a job."""

    def decorate(verb: Verb) -> Verb:
        @wraps(verb)
        async def call(self: "Runner[Any]", *args: Any, **kwargs: Any) -> Any:
            own = self._session
            ids = bind_context(session_id=own.session_id, user_id=own.user_id, user_category=own.category)
            with ids, trace_root(name):
                return await verb(self, *args, **kwargs)

        return call  # type: ignore[return-value]  # it has the verb's own signature

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """What a runner needs besides its session. All runners of an application share one."""

    project: Project[Any]
    """An agent alone is a project as well."""
    providers: ProviderPool
    registry: TurnRegistry
    counter: SpendingCounter
    provider: LLMProvider | None = None
    """Answers in place of the agents' models."""
    budget: Budget | None = None
    """In place of the project's budgets and that of the settings."""


class Runner(Generic[Output_co]):
    """Runs the turns of one session with an agent, or with the session's agent of a project. Cheap to create: one per
    request.

    A `Project` brings its providers, budgets, approvers and `on_erase`, and its settings for a session that was created
    without any. Without a `provider`, the agent's model is looked up in `providers`, by default those of the project
    and the settings. Without a `registry`, the process shares one in memory. `budget` limits the user's spending
    (default: the project's and the settings'), and `counter` counts it (default: in memory). `approvers` decides who
    may approve tool calls (default: the project's rule, else the session's user).
    """

    def __init__(
        self,
        agent: Agent[Any, Output_co] | Project[Output_co],
        session: SessionManager,
        *,
        provider: Annotated[LLMProvider | None, check(check_provider)] = None,
        providers: ProviderPool | None = None,
        registry: TurnRegistry | None = None,
        hooks: TurnHooks = TurnHooks(),
        budget: Budget | None = None,
        counter: SpendingCounter | None = None,
        approvers: Annotated["ApproverRule | None", check(check_rule, "approver", "request")] = None,
    ) -> None:
        check_declared("Runner", Runner.__init__, locals())
        if isinstance(agent, Project):
            session.use_settings(agent.read_settings)
        project = agent if isinstance(agent, Project) else Project(agent=agent)
        options = RunnerOptions(
            project=replace(project, approvers=approvers) if approvers else project,
            providers=providers or _pool(agent if isinstance(agent, Project) else None, session.settings),
            registry=registry or _process_registry,
            counter=counter or _process_counter,
            provider=provider,
            budget=budget,
        )
        self._serve(options, session, hooks)

    def _serve(self, options: RunnerOptions, session: SessionManager, hooks: RuntimeHooks) -> None:
        self.session_id = session.session_id
        self._options = options
        self._session = session
        self._hooks = hooks
        of_category = options.project.budgets.get(session.category or "")
        self._budget = options.budget or of_category or session.settings.budget
        self._state = SessionSetup(session=session, registry=options.registry, hooks=hooks)
        most_seconds = session.settings.max_turn_seconds if hooks.on_work is not None else math.inf
        self._limit = partial(TimeLimit, most_seconds=most_seconds)
        self._agent_name: str | None = None
        self._agent: Agent[Any, Output_co] = next(iter(options.project.all_agents.values()))
        """In a project with several, the default until `_resolve` has read the session's."""

    async def run(
        self, query: str | Query, *, busy: Busy | None = None, deadline: float | None = None
    ) -> RunResult[Output_co]:
        """Answer and return the stored result.

        Cancelling it stops the turn. The partial answer is stored before the cancellation propagates.
        """
        answer = await self._open(query, busy, deadline)
        try:
            return self._typed(await answer.result())
        except asyncio.CancelledError:
            answer.stop("cancelled")  # a turn that runs elsewhere continues
            with suppress(asyncio.CancelledError):
                await answer.ended()
            raise

    def run_stream(
        self, query: str | Query, *, busy: Busy | None = None, deadline: float | None = None
    ) -> AnswerStream[Output_co]:
        """Answer as a stream: of a new turn, of the running turn of the same message, or of its stored answer.

        `busy` is the policy while the session answers another message: `reject`, `queue`, `steer` or `interrupt`
        (default: the setting). `deadline` is the `time.monotonic()` by which everything must be stored.
        """
        query = Query(query) if isinstance(query, str) else query
        if isinstance(query, Query) and not (query.message_id or query.regenerate):
            query = replace(query, message_id=new_id())  # opened again after a failure, it is still the same message
        return self._stream(opening=partial(self._open, query, busy, deadline))

    async def start(
        self, query: str | Query, *, busy: Busy | None = None, deadline: float | None = None
    ) -> AnswerStream[Output_co]:
        """Start `run_stream` at once. Every refusal is raised here; afterwards the user's message is durable."""
        return self._stream(await self._open(query, busy, deadline))

    def reply(
        self,
        *replies: "ToolReply",
        message_id: str | None = None,
        approver: "Approver | None" = None,
        deadline: float | None = None,
    ) -> AnswerStream[Output_co]:
        """Reply to a waiting turn's requests and continue it. The stream is the rest of its answer.

        Replies to only some of a step's requests are stored, and the turn keeps waiting. A retry joins the continued
        run or replays it. `message_id` is the waiting answer's (default: that of the request, else the latest).
        `approver` replies instead of the session's user. A `RequestError` means that nothing has changed:
        `UnknownRequest`, `NotWaiting`, `ReplyConflict`, `RequestExpired`, `InvalidRequest`, `Forbidden`.
        """

        from omniagent.ai.approvals import ToolReply  # needed only for a waiting turn

        if not replies or not all(isinstance(reply, ToolReply) for reply in replies):
            raise ConfigurationError(f"Runner.reply takes replies such as request.approve(), not {replies!r:.100}")

        answer_id = message_id or next((reply.message_id for reply in replies if reply.message_id), "")
        return self._stream(opening=partial(self._go_on, replies, answer_id, approver, deadline))

    @traced("resume")
    async def resume(
        self, *, deadline: float | None = None, after: StreamPosition | None = None
    ) -> AnswerStream[Output_co] | None:
        """Follow the running turn from its first event. None if none runs. If its process died, it goes on here.

        `after` names events that were seen before, also of an answer that has ended. Only the rest is streamed.

        A stream ends without `finish` after two minutes and at its deadline: resume again. Raises `TooManyReaders`.

        A message in line that nobody answers is answered now. An answer that has just ended is streamed once more: a
        page that read the messages before it was stored would otherwise never show it.
        """
        head = await self._session.head()
        if head is None:
            return None
        if head.turn is None and not head.queue and after is None:
            source = await just_ended(self._session, head)  # a page asks whenever it is opened: this needs no model
        else:
            source = await resumed(await self._setup(), head, self._limit(deadline), after)
        return None if source is None else self._stream(source)

    @traced("stop")
    async def stop(self, message_id: str | None = None) -> bool:
        """Stop the running turn and every queued message. The text so far is kept. False if there is nothing to stop.

        `message_id` names the user's message or the answer, or the answer that a regeneration replaces, so that a late
        stop ends no other answer. A queued message is stored with an empty, stopped answer when it is due. A message
        that joined an answer stops that answer. A turn that waits for an approval or a client tool is closed, and none
        of its calls run.
        """
        return await stop_session(self._state, message_id)

    @traced("history")
    async def history(
        self, *, turns: int = 50, before: int | None = None, branch: str | None = None
    ) -> Sequence[SessionMessage]:
        """Read the messages of the newest turns of the active path in order, or of those before a turn's number.

        `branch` names a message by its node: the path to it is read instead. A message that has siblings names all of
        them. The running turn's answer is left out: `resume` streams it. Empty if the session does not exist.
        """
        head = await self._session.head()
        if head is None:
            return []
        return await self._session.shown(head, turns=turns, before=before, branch=branch)

    @traced("tree")
    async def tree(self, *, limit: int = 100, after: SessionMessage | None = None) -> Sequence[SessionMessage]:
        """Read the messages of all branches, each after its parent: the first `limit`, or those after a message.

        `after` is the last message of the page before. A message that is being answered is left out.
        """
        return await self._session.tree(limit=limit, after=after.place if after is not None else None)

    @traced("switch")
    async def switch(self, node: str) -> None:
        """Make the path through a message the active one, down to the end of its newest branch.

        Raises `NotFound`, and `TurnInProgress` while a message is being answered.
        """
        while (head := await self._session.head()) is not None:
            if head.running is not None or head.queue:
                raise TurnInProgress
            leaf = await self._session.end_of((await self._session.named(head, node)).place)
            with suppress(Moved):
                await self._state.apply(head, Switch(leaf))
                return
        raise NotFound

    @traced("requests")
    async def requests(self) -> "Sequence[ToolRequest]":
        """Read the open requests of the session's waiting turn, also after a restart. Empty if it does not wait."""
        from omniagent.ai.approvals import requests_of  # needed only for a waiting turn

        session = self._session
        head = await session.head()
        turn = head.waiting if head is not None else None
        answer = await session.node(turn.id) if turn is not None and not turn.has_expired(session.now()) else None
        if answer is None:
            return []
        return requests_of(answer, user=session.user, category=session.category, session_id=session.session_id)

    @traced("rate")
    async def rate(self, message_id: str, feedback: Feedback | None) -> SessionMessage:
        """Store the user's feedback with the answer and in the turn's trace. None withdraws it.

        Raises `NotFound`, and `InvalidRequest` for a message that is not an answer.
        """
        answer = await self._session.rate(message_id, feedback)
        stored = feedback or Feedback()
        with bind_context(turn=answer.turn_number):
            record_feedback(answer.id, stored.rating, stored.text, traceparent=answer.trace)
        return answer

    @traced("name")
    async def name(self) -> str:
        """Have the model name the session. A name that the user sets meanwhile is kept. Raises `BudgetExceeded`."""
        await self._resolve()
        await self._meter().admit()
        return await self._name()

    async def _name(self) -> str:
        state = await self._session.load()
        if state.head.version == 0:
            raise NotFound
        provider, overrides = self._model(self._agent.naming or replace(self._agent.summary, instructions=None))
        name = await name_session(provider, state, overrides, meter=self._meter(), note_cost=self._hooks.note_cost)
        await self._session.rename(name, was=state.head.name)
        return name

    @traced("summarize")
    async def summarize(self, *, rebuild: bool = False, time_left: TimeLeft = forever) -> Summarized:
        """Update the summary, or rebuild it from the first turn. Raises `BudgetExceeded`."""
        await self._resolve()
        pipeline = self._summaries(self._meter())
        return await (pipeline.rebuild if rebuild else pipeline.update)(time_left=time_left)

    @traced("erase")
    async def erase(self) -> None:
        """Delete the session with everything in it. A running turn is discarded. Raises `NotFound`."""
        await self._deletion(forever).of_session(self._session)

    def _deletion(self, time_left: TimeLeft) -> "Deletion":
        from omniagent.turns.watch.deletion import Deletion  # no turn needs it

        options = self._options
        on_erase = self._hooks.on_erase or options.project.on_erase
        return Deletion(options.registry, options.counter, on_erase, time_left)

    def _stream(
        self, source: AnswerSource | None = None, opening: Callable[[], Awaitable[AnswerSource]] | None = None
    ) -> AnswerStream[Output_co]:
        return AnswerStream(self.session_id, self._typed, source, opening)

    def _typed(self, result: RunResult[Any]) -> RunResult[Output_co]:
        """Add the output of a typed answer that did not run here. Its text may no longer fit a changed model.

        Raises the crash of a tool that fails a test, see `ScriptedModel`.
        """
        if isinstance(result.error, ToolFailed):
            raise result.error
        if self._agent.output is None or result.output is not None or result.status != "complete":
            return result
        with suppress(InvalidOutput):
            return replace(result, output=self._agent.parse_output(last_text(result.parts)))
        return result

    @traced("run")
    async def _open(self, query: str | Query, busy: Busy | None, deadline: float | None) -> AnswerSource:
        checked = Query.checked(query, busy, self._session.settings)
        return await Submission(await self._setup(checked.agent), checked, self._limit(deadline)).open()

    @traced("reply")
    async def _go_on(
        self, replies: "Sequence[ToolReply]", answer_id: str, approver: "Approver | None", deadline: float | None
    ) -> AnswerSource:
        from omniagent.ai.approvals import Approver
        from omniagent.turns.engine.replying import Replies  # needed only for a waiting turn

        return await Replies(
            setup=await self._setup(),
            replies=replies,
            limit=self._limit(deadline),
            message_id=answer_id,
            approver=approver or Approver(self._session.user, self._session.category),
            rule=self._options.project.approvers,
        ).open()

    async def _resolve(self, name: str | None = None) -> None:
        """Find the session's agent. `name` is what a message asks for. See `Project.name_agent`."""
        project, session = self._options.project, self._session
        if project.agents:
            head = await session.head()
            known = head.agent if head is not None else None
            self._agent_name = await project.name_agent(session.user, session.category, name, known)
            self._agent = project.agents[self._agent_name]
        elif name is not None:
            raise InvalidRequest("agent: there is only one agent. Leave `agent` out.")

    async def _setup(self, name: str | None = None) -> TurnSetup:
        await self._resolve(name)
        meter = self._meter()
        provider, overrides = self._model(self._agent.overrides)
        return TurnSetup(
            agent=self._agent,
            provider=provider,
            overrides=overrides,
            model=overrides.model or provider.model,
            session=self._session,
            registry=self._options.registry,
            summaries=partial(self._summaries, meter),
            meter=meter,
            agent_name=self._agent_name,
            name=self._name if self._session.settings.name_sessions else None,
            hooks=self._hooks,
        )

    def _meter(self) -> Meter:
        """Return the meter of one request: of the user, and of the user's spending on an agent with its own budget."""
        user_id, agent, on_refusal = self._session.user_id, self._agent, self._hooks.on_refusal
        meter = Meter(self._options.counter, user_id, self._budget, on_refusal)
        if agent.budget is None:
            return meter
        account = agent_account(user_id, self._agent_name or agent.name)
        return Meter(self._options.counter, account, agent.budget, on_refusal, within=meter)

    def _summaries(self, meter: Meter) -> SummaryPipeline:
        provider, overrides = self._model(self._agent.summary)
        return SummaryPipeline(self._session, provider, overrides, meter=meter, note_cost=self._hooks.note_cost)

    def _model(self, overrides: Overrides) -> tuple[LLMProvider, Overrides]:
        """Return provider and overrides for the model of the overrides, else of the agent."""
        options = self._options
        name = overrides.model or self._agent.model
        if options.provider is not None:
            first = chain_of(name)[0] if name else None
            own = frozenset(options.project.providers)
            return options.provider, replace(overrides, model=first and without_vendor(first, own))
        # The pool's provider has the model already.
        rest = replace(overrides, model=None) if overrides.model else overrides
        return options.providers.get(name or self._session.settings.model), rest


@lru_cache(maxsize=8)
def _pool(project: Project | None, settings: Settings) -> ProviderPool:
    return ProviderPool.from_settings(settings, project.providers if project is not None else None)
