"""What a turn runs with: what all turns of one runner have in common, and what one turn is given to do."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from omniagent.ai.agent import Agent
from omniagent.ai.providers.llm_provider import LLMProvider, Overrides, Purpose
from omniagent.ai.result import RunResult
from omniagent.messages import Usage
from omniagent.session.manager import SessionManager
from omniagent.session.state import SessionState
from omniagent.session.summaries import SummaryPipeline
from omniagent.settings import Settings
from omniagent.turns.lease import TurnRegistry
from omniagent.turns.plan import TurnPlan
from omniagent.turns.time_limit import TimeLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHooks:
    """Called by the runtime around turns. What they raise is logged and changes nothing."""

    on_end: Callable[[RunResult], Awaitable[None]] | None = None
    """Called when a turn has ended and its readers have seen the end."""
    on_model_call: Callable[[Purpose, Usage], None] | None = None
    """Called with what the model calls for summaries and names have cost."""
    leaves_summaries: bool = False
    """Somebody else makes the summaries that an answer does not wait for: `RunResult.summary_missed` says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSetup:
    """The agent, its model, the session and the registry."""

    agent: Agent
    provider: LLMProvider
    overrides: Overrides
    session: SessionManager
    registry: TurnRegistry
    summaries: SummaryPipeline
    hooks: TurnHooks = TurnHooks()

    @property
    def settings(self) -> Settings:
        return self.session.settings


@dataclass(frozen=True, slots=True)
class Assignment:
    """One turn: its id, what it is to do, the state it starts from, and the time it has."""

    turn_id: str
    plan: TurnPlan
    state: SessionState
    limit: TimeLimit
