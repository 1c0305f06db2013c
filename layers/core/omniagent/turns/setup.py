"""`SessionSetup` and `TurnSetup`: what changes, and what runs, the turns of one session."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from omniagent.ai.agent import Agent
from omniagent.ai.providers.llm_provider import LLMProvider, Overrides
from omniagent.budget.meter import Meter
from omniagent.session.live import LiveTurn, SessionHead
from omniagent.session.manager import SessionManager
from omniagent.session.summaries import SummaryPipeline
from omniagent.session.window import Limits, token_limit
from omniagent.settings import Settings
from omniagent.turns import state, state_events
from omniagent.turns.hooks import RuntimeHooks
from omniagent.turns.journal.records import is_handed_over
from omniagent.turns.registry import SHORT_RUN, Chunk, TurnRegistry

MAX_ATTEMPTS = 5
"""Maximum takeovers of a turn whose processes die. Then it is closed as interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSetup:
    """A session, its registry and the hooks: enough to change the state of its turn."""

    session: SessionManager
    registry: TurnRegistry
    hooks: RuntimeHooks = RuntimeHooks()

    async def apply(self, head: SessionHead, event: state_events.Event) -> SessionHead:
        """Apply an event and return the session after it. Raises `Moved` if the session has moved on."""
        change = state.transition(head, event, self.session.now(), lease_seconds=self.settings.lease_seconds)
        if not await self.session.write(change):
            raise state.Moved("another process has changed the session")
        return change.after

    async def settle(
        self, decided: Callable[[SessionHead], state_events.Event | None], head: SessionHead | None = None
    ) -> SessionHead | None:
        """Apply the event that a run decides for its own turn, from this session or as it is now, until it fits.

        None if there is nothing to apply, the run has lost the turn, or the session is deleted.
        """
        head = head or await self.session.head()
        while head is not None and (event := decided(head)) is not None:
            try:
                return await self.apply(head, event)
            except state.Moved:
                before, head = head.version, await self.session.head()
                if head is not None and head.version == before:
                    return None
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

    @property
    def window_limits(self) -> Limits:
        size = self.provider.context_window(self.overrides)
        return Limits(self.settings.context_max_turns, token_limit(self.settings.context_max_tokens, size))

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self.overrides.model or self.provider.model
