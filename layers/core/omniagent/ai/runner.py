"""`Runner`: every verb of a session in one place: run, stream, resume, stop, settle, rate, name, summarize,
erase.

runner = Runner(agent, MongoSessionManager(store, "alice", "demo"))
async for event in runner.run_stream("Hello"):
    ...
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import lru_cache

from omniagent.ai.agent import Agent
from omniagent.ai.providers.llm_provider import LLMProvider, Overrides
from omniagent.ai.providers.model_calls import ProviderPool
from omniagent.ai.result import AnswerSource, AnswerStream, RunResult
from omniagent.errors import ConfigurationError, NotFound
from omniagent.messages import Feedback
from omniagent.session.manager import SessionHead, SessionManager, SessionMessage
from omniagent.session.naming import name_session
from omniagent.session.summaries import Summarized, SummaryPipeline
from omniagent.settings import Settings
from omniagent.tracing import bind_context, record_feedback
from omniagent.turns.follow import FollowedAnswer
from omniagent.turns.lease import TurnRegistry
from omniagent.turns.memory_registry import MemoryRegistry
from omniagent.turns.plan import Opening
from omniagent.turns.repair import erase_session, erase_sessions, erase_user, settle
from omniagent.turns.replay import ReplayedAnswer
from omniagent.turns.setup import Query, TimeLimit, TurnHooks, TurnSetup
from omniagent.turns.turn import Turn

TimeLeft = Callable[[], float]
"""Returns the seconds that are left for a long piece of work."""

REPLAY_SECONDS = 10.0
"""How long after its end an answer is still streamed to whoever resumes."""

_process_registry = MemoryRegistry()


def _forever() -> float:
    return math.inf


class Runner:
    """Runs the turns of one session with one agent. Cheap to make: one per request.

    Without a `provider` the agent's model is looked up in `providers`, by default those that the settings describe.
    Without a `registry` one in memory serves the whole process.
    """

    def __init__(
        self,
        agent: Agent,
        session: SessionManager,
        *,
        provider: LLMProvider | None = None,
        providers: ProviderPool | None = None,
        registry: TurnRegistry | None = None,
        hooks: TurnHooks = TurnHooks(),
    ) -> None:
        _check(agent, session)
        self._agent = agent
        self._session = session
        self._provider = provider
        self._providers = providers
        self._registry = registry or _process_registry
        self._hooks = hooks

    async def run(self, query: str | Query, *, deadline: float | None = None) -> RunResult:
        """Answer and return the stored result.

        Cancelling it stops the turn; the partial answer is stored before the cancellation goes on.
        """
        answer = await self._open(query, deadline)
        try:
            return await answer.result()
        except asyncio.CancelledError:
            if isinstance(answer, Turn):  # one that somebody else runs goes on
                answer.stop("cancelled")
                with suppress(asyncio.CancelledError):
                    await answer.ended()
            raise

    def run_stream(self, query: str | Query, *, deadline: float | None = None) -> AnswerStream:
        """Answer as a stream: of a new turn, the one that answers the same message already, or its stored answer.

        `deadline` is a `time.monotonic()` by which everything must be stored.
        """
        return AnswerStream(self._session.session_id, lambda: self._open(query, deadline))

    async def start(self, query: str | Query, *, deadline: float | None = None) -> AnswerStream:
        """Start `run_stream` at once: every refusal is raised here, and the user's message is durable then."""
        return await self.run_stream(query, deadline=deadline)

    async def resume(self) -> AnswerStream | None:
        """Follow the running turn from its first event; None when none runs. A dead turn is closed first.

        An answer that has just ended is streamed once more: a page that read the messages before it was stored would
        otherwise never show it.
        """
        running = await self._registry.running(self._session.key)
        if running is not None and running.alive:
            followed = await FollowedAnswer.begun(self._session, self._registry, running.claim)
            if followed is not None:
                return await AnswerStream(self._session.session_id, lambda: _ready(followed))
        head = await self.settle()
        if head is None or not head.ended_within(REPLAY_SECONDS):
            return None
        answer = await self._session.answer(head.latest_turn_number)
        if answer is None:
            return None
        replayed = ReplayedAnswer(self._session.session_id, answer)
        return await AnswerStream(self._session.session_id, lambda: _ready(replayed))

    async def stop(self, message_id: str | None = None) -> bool:
        """Tell the running turn to end with what it has. Returns False when none is running.

        `message_id` is the user's message or the answer that is meant, of a regeneration also the answer that it
        replaces: a late stop then ends no other answer.
        """
        return await self._registry.stop(self._session.key, message_id)

    async def settle(self) -> SessionHead | None:
        """Read the session itself, after closing a turn whose process died. None when there is no such session."""
        return await settle(self._session, self._registry)

    async def rate(self, message_id: str, feedback: Feedback | None) -> SessionMessage:
        """Store what the user thinks of an answer, in the answer and in the turn's trace. None takes it back.

        Raises `NotFound`, and `InvalidRequest` for a message that is no answer.
        """
        await self.settle()
        answer = await self._session.rate(message_id, feedback)
        given = feedback or Feedback()
        with bind_context(session_id=self.session_id, user_id=self._session.user_id, turn=answer.turn_number):
            record_feedback(answer.id, given.rating, given.text, traceparent=answer.trace)
        return answer

    async def name(self) -> str:
        """Let the model name the session. A name that somebody chooses meanwhile stands."""
        state = await self._session.load()
        if state.head.latest_turn_number == 0 and await self._session.head() is None:
            raise NotFound
        provider, overrides = self._model(self._settings.name_model)
        completion = await name_session(provider, state, overrides)
        self._hooks.note_cost("name", completion.usage)
        await self._session.rename(completion.text, was=state.head.name)
        return completion.text

    async def summarize(self, *, rebuild: bool = False, time_left: TimeLeft = _forever) -> Summarized:
        """Bring the summary up to date, or write it again from the first turn on."""
        pipeline = self._summaries()
        summarized = await (pipeline.rebuild if rebuild else pipeline.update)(time_left=time_left)
        self._hooks.note_cost("summary", summarized.usage)
        return summarized

    async def erase(self, *, resume: bool = False, time_left: TimeLeft = _forever) -> bool:
        """Delete the session with everything in it; a running turn is lost. Raises `NotFound`.

        Returns False when the time did not suffice: the session is gone for everybody, and calling it again goes on.
        With `resume` it only goes on: a session that was made under the same id since is left alone.
        """
        return await erase_session(self._session, self._registry, time_left, resume=resume)

    async def erase_user(self, *, resume: bool = False, time_left: TimeLeft = _forever) -> bool:
        """Delete the session's user with all their sessions, in the same way. May be repeated."""
        return await erase_user(self._session, self._registry, time_left, resume=resume)

    async def erase_leftovers(self, before: datetime, *, time_left: TimeLeft = _forever) -> bool:
        """Delete sessions of the user that were created before a time, when the user was deleted.

        A transaction that was under way then may have made one afterwards. What the user has done since stays.
        """
        return await erase_sessions(self._session, self._registry, time_left, before=before)

    @property
    def session_id(self) -> str:
        return self._session.session_id

    @property
    def _settings(self) -> Settings:
        return self._session.settings

    async def _open(self, query: str | Query, deadline: float | None) -> AnswerSource:
        limit = TimeLimit(deadline, self._settings.deadline_margin_seconds)
        checked = (Query(query) if isinstance(query, str) else query).checked(self._settings)
        return await Opening(self._setup(), checked, limit).open()

    def _setup(self) -> TurnSetup:
        provider, overrides = self._model("", self._agent.overrides)
        most = overrides.max_output_tokens or self._settings.max_output_tokens or None
        return TurnSetup(
            agent=self._agent,
            provider=provider,
            overrides=replace(overrides, max_output_tokens=most),
            session=self._session,
            registry=self._registry,
            summaries=self._summaries,
            name=self.name if self._settings.name_sessions else None,
            hooks=self._hooks,
        )

    def _summaries(self) -> SummaryPipeline:
        return SummaryPipeline(self._session, *self._model(self._settings.summary_model, self._agent.summary))

    def _model(self, setting: str, overrides: Overrides = Overrides()) -> tuple[LLMProvider, Overrides]:
        """Return the provider, and the overrides, of a model: the setting's, the override's, the agent's."""
        name = setting or overrides.model or self._agent.model
        if self._provider is not None:
            return self._provider, replace(overrides, model=name)
        pool = self._providers or _default_pool(self._settings)
        return pool.get(name or self._settings.model), replace(overrides, model=None)


async def _ready(source: AnswerSource) -> AnswerSource:
    return source


@lru_cache(maxsize=8)
def _default_pool(settings: Settings) -> ProviderPool:
    return ProviderPool.from_settings(settings)


def _check(agent: object, session: object) -> None:
    if not isinstance(agent, Agent):
        raise ConfigurationError(f"Runner(agent, session): the agent is {agent!r:.100}, not an Agent(…)")
    if not isinstance(session, SessionManager):
        raise ConfigurationError(
            f"Runner(agent, session): the session is {session!r:.100}: write MongoSessionManager(store, user, id) "
            "or InMemorySessionManager(user, id)"
        )
