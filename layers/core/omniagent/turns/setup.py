"""A turn's plan, and what all turns of one runner share."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from omniagent.ai.agent import Agent
from omniagent.ai.providers.llm_provider import LLMProvider, Overrides
from omniagent.ai.result import AnswerSource
from omniagent.budget.meter import Meter
from omniagent.messages import Part
from omniagent.session.manager import SessionManager, SessionMessage
from omniagent.session.summaries import NoteCost, SummaryPipeline
from omniagent.settings import Settings
from omniagent.turns.claiming import Notice
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.hooks import TurnHooks, call_back
from omniagent.turns.keeper import LeaseKeeper
from omniagent.turns.lease import Claim, InboxMessage, TurnRegistry
from omniagent.turns.query import Query

HAND_OVER_SECONDS = 3.0
"""Time for the next process to continue a handed-over turn. After that, a queued message is refused as busy."""
HAND_OVER_POLL_SECONDS = 0.1
"""Poll interval while waiting for a hand-over."""
MAX_ATTEMPTS = 5
"""Maximum takeovers of a turn whose processes die. Then it is closed, or its unstored question is dropped."""


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """What a turn will do."""

    number: int
    message_id: str
    text: str
    again: bool = False
    """The turn already exists and is answered again."""
    previous: SessionMessage | None = None
    """The turn's existing answer."""
    kept: Sequence[Part] = ()
    """The steps of `previous` whose tools may have taken effect. The turn continues after them and repeats none."""
    waited: SessionMessage | None = None
    """A waiting answer that this turn continues, or closes as it begins."""
    seen_turn_id: str | None = None
    """The session's `latest_turn_id` when it was read."""

    @property
    def continued(self) -> SessionMessage | None:
        """The waiting answer that the turn continues."""
        return self.waited if self.waited is not None and self.waited.turn_number == self.number else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSetup:
    """The agent, its model, the session and the registry."""

    agent: Agent
    provider: LLMProvider
    overrides: Overrides
    session: SessionManager
    registry: TurnRegistry
    summaries: Callable[[NoteCost], SummaryPipeline]
    meter: Meter
    open_once: Callable[[Query, TimeLimit, InboxMessage | None, int], Awaitable[AnswerSource | None]]
    """`Opening.open_once` of a queued message or a dead process's question, after this many deaths."""
    name: Callable[[], Coroutine[Any, Any, str]] | None = None
    """Names the session. None: its clients do."""
    hooks: TurnHooks = TurnHooks()

    def notice(self, claim: Claim) -> Notice:
        """Return a turn's notice, not yet given."""
        return Notice(partial(call_back, self.hooks.on_begin, claim.turn_id, claim.attempt))

    def keeper(self, claim: Claim, notice: Notice) -> LeaseKeeper:
        """Keep a claim that was just taken. Its release is given up after the lease: the session is free by then."""
        tick, lease = self.settings.tick_seconds, self.settings.lease_seconds
        return LeaseKeeper(self.registry, claim, tick_seconds=tick, release_seconds=lease, notice=notice)

    def may_hand_over(self, limit: TimeLimit) -> bool:
        """Whether another process may continue a turn that runs out of time in this one."""
        return self.hooks.on_hand_over is not None and not limit.is_last

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self.overrides.model or self.provider.model

    @property
    def settings(self) -> Settings:
        return self.session.settings
