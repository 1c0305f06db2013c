"""`SessionSetup` and `TurnSetup`: what changes, and what runs, the turns of one session."""

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from omniagent.ai.agent import Agent
from omniagent.ai.providers.llm_provider import LLMProvider, Overrides
from omniagent.budget.meter import Meter
from omniagent.session.live import LiveTurn, SessionHead, SessionState
from omniagent.session.manager import SessionManager
from omniagent.session.summaries import SummaryPipeline
from omniagent.session.window import Limits, token_limit
from omniagent.settings import Settings
from omniagent.tracing import Span, SpanKind, bind_context, trace_operation
from omniagent.tracing.attributes import AGENT_NAME, TURN_NUMBER
from omniagent.turns import state
from omniagent.turns.hooks import TurnHooks
from omniagent.turns.journal.records import is_handed_over
from omniagent.turns.registry import SHORT_RUN, Chunk, TurnRegistry

MAX_ATTEMPTS = 5
"""Maximum takeovers of a turn whose processes die. Then it is closed as interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSetup:
    """A session, its registry and the hooks: enough to change the state of its turn."""

    session: SessionManager
    registry: TurnRegistry
    hooks: TurnHooks = TurnHooks()

    async def apply(self, head: SessionHead, event: state.Event) -> SessionHead | None:
        """Apply an event and return the session after it. None if it has moved on. Raises `Moved`."""
        change = state.transition(head, event, self.session.now(), lease_seconds=self.settings.lease_seconds)
        return change.after if await self.session.write(change) else None

    async def settle(
        self, decided: Callable[[SessionHead], state.Event | None], head: SessionHead | None = None
    ) -> SessionHead | None:
        """Apply the event that a run decides for its own turn, from this session or as it is now, until it fits.

        None if there is nothing to apply, the run has lost the turn, or the session is deleted.
        """
        head = head or await self.session.head()
        while head is not None and (event := decided(head)) is not None:
            try:
                if (after := await self.apply(head, event)) is not None:
                    return after
            except state.Moved:
                return None
            head = await self.session.head()
        return None

    async def is_alive(self, turn: LiveTurn, key: str | None = None) -> bool:
        """Whether the process of a running turn has shown a sign of life within a lease. `key`: another session's."""
        newest = await self.registry.read(key or self.session.key, turn.journal, newest=True)
        return not self.is_dead(turn, newest[-1] if newest else None)

    def is_dead(self, turn: LiveTurn, last: Chunk | None) -> bool:
        """Whether the process of a running turn is gone, by the last chunk of its journal. It may have handed over."""
        if last is not None and last.run == turn.run[:SHORT_RUN] and is_handed_over(last.lines):
            return True
        last_at = last.at if last is not None else None
        return state.is_dead(turn, last_at, self.session.now(), self.settings.lease_seconds)

    def bound(self) -> AbstractContextManager[None]:
        """Log and trace with the session's ids while the context lasts."""
        session = self.session
        return bind_context(session_id=session.session_id, user_id=session.user_id, user_category=session.category)

    @property
    def settings(self) -> Settings:
        return self.session.settings


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSetup(SessionSetup):
    """What all turns of one runner share: also the agent, its model and its meter."""

    agent: Agent
    provider: LLMProvider
    overrides: Overrides
    summaries: Callable[[], SummaryPipeline]
    meter: Meter
    agent_name: str | None = None
    """The agent's name in the project. None: it has only one."""
    name: Callable[[], Coroutine[Any, Any, str]] | None = None
    """Names the session. None: its clients do."""

    def span(self, turn_number: int) -> Span:
        """Begin the span of a turn's run."""
        attributes = {AGENT_NAME: self.agent.name, TURN_NUMBER: turn_number}
        return trace_operation("turn", kind=SpanKind.AGENT, attributes=attributes)

    def with_agent(self, state: SessionState) -> SessionState:
        """Return what a turn starts from, with the session's agent. Raises if it was given another one meanwhile."""
        if self.agent_name is None:
            return state
        state.head.check_agent(self.agent_name)
        return replace(state, head=replace(state.head, agent=self.agent_name))

    @property
    def window_limits(self) -> Limits:
        size = self.provider.context_window(self.overrides)
        return Limits(self.settings.context_max_turns, token_limit(self.settings.context_max_tokens, size))

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self.overrides.model or self.provider.model
