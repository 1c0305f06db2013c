"""What a turn is given: hooks, `TimeLimit` until when, `SessionSetup` to change its state, `TurnSetup` to run it."""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

from omniagent.ai.agent import Agent
from omniagent.ai.providers.llm_provider import LLMProvider, Overrides, Purpose
from omniagent.ai.result import RunResult
from omniagent.budget.spending import Meter
from omniagent.errors import BudgetExceeded, OmniAgentError, StorageRejected
from omniagent.messages import Usage
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.session.summaries import SummaryPipeline
from omniagent.team_code import team_code
from omniagent.turns import state, state_events
from omniagent.turns.journal.readers import is_handed_over
from omniagent.turns.journal.replay import reduced
from omniagent.turns.registry import SHORT_RUN, Chunk, TurnRegistry
from omniagent.validation import check, check_async, check_fields, check_sync

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 60.0
MARGIN_SECONDS = 8.0
"""Time reserved before the Lambda deadline to store the answer."""
REPORT_SECONDS = 1.0
"""Time reserved at the very end to tell the client that its answer could not be stored."""
EraseHook = Callable[[str, str | None], Awaitable[None]]
"""Takes the user's name and a session's id. None means everything of the user."""


async def call_back(callback: Callable[..., Awaitable[None]] | None, *arguments: Any) -> None:
    """Call a callback if there is one. Exceptions are logged, not raised."""
    if callback is not None:
        name = getattr(callback, "__name__", repr(callback))
        with suppress(OmniAgentError), team_code("callback failed", callback=name):
            await callback(*arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeHooks:
    """What the runtime calls. An application makes its own for each request, which need no check."""

    on_work: Annotated[Callable[[], Awaitable[None]] | None, check(check_async)] = None
    """Called when the session has work for another process: its turn is handed over because this process runs out of
    time, or messages are in line and no turn runs. `TurnOperator.take_up` does it. Without this hook, a turn that runs
    out of time ends and its text is stored.
    """
    on_end: Annotated[Callable[[RunResult], Awaitable[None]] | None, check(check_async, "result")] = None
    """Called when a turn has ended and its readers have seen the end."""
    on_model_call: Annotated[Callable[[Purpose, Usage], None] | None, check(check_sync, "purpose", "usage")] = None
    """Called with the cost of each model call for a summary or a name, estimated if it was not reported."""
    on_refusal: Annotated[Callable[[BudgetExceeded], None] | None, check(check_sync, "refusal")] = None
    """Called when a user's budget refuses a request."""
    on_erase: Annotated[EraseHook | None, check(check_async, "user", "session_id")] = None
    """Deletes a team's own data of a session or a user. If it raises, the sweep tries again."""
    leaves_summaries: bool = False
    """Summaries that an answer does not wait for are generated elsewhere; `RunResult.summary_missed` reports them."""

    def note_cost(self, purpose: Purpose, usage: Usage) -> None:
        """Report the cost of a model call, if there is a hook."""
        if self.on_model_call is None or not usage.total_tokens:
            return
        with suppress(OmniAgentError), team_code("hook failed", hook="on_model_call"):
            self.on_model_call(purpose, usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHooks(RuntimeHooks):
    """Called by the runtime. Exceptions are logged and ignored, except those of `on_erase`."""

    def __post_init__(self) -> None:
        check_fields("TurnHooks", self)


@dataclass(slots=True)
class TimeLimit:
    """`deadline` is the `time.monotonic()` by which everything must be stored; None, or infinite, for no limit."""

    deadline: float | None
    margin_seconds: float = MARGIN_SECONDS
    started_at: float = field(default_factory=time.monotonic)
    most_seconds: float = math.inf
    """Maximum length of the turn in all its processes. Infinite if no other one may continue it."""
    opened_at: float = field(default_factory=time.monotonic)
    """When this process began to work on the turn."""
    stop_at: float = field(init=False, default=math.inf)
    """When the answer must end. Some of this process's time is reserved for storing, at most a quarter."""
    may_hand_over: bool = field(init=False, default=False)
    """Whether another process may continue the turn if it runs out of time in this one."""
    closing_at: float = field(init=False, default=math.inf)
    """When so little time is left that a turn which may be handed over starts nothing new here."""
    give_up_at: float | None = field(init=False, default=None)
    """When to stop trying to store the answer, with time left to tell the client. None without a deadline."""

    def __post_init__(self) -> None:
        if self.deadline == math.inf:
            self.deadline = None
        if self.deadline is not None:
            last = self.started_at + self.most_seconds
            self.stop_at = min(self.deadline - min(self.margin_seconds, (self.deadline - self.opened_at) / 4), last)
            self.may_hand_over = math.isfinite(self.most_seconds) and self.stop_at < last
            self.closing_at = self.stop_at - min(CLOSING_SECONDS, (self.stop_at - self.opened_at) / 4)
            self.give_up_at = self.deadline - min(REPORT_SECONDS, (self.deadline - self.stop_at) / 4)

    def closing_seconds(self, most: float) -> float:
        """How long the release of the session may take. The readers must still see the end in time."""
        if self.deadline is None:
            return most
        return max(0.0, min(most, (self.deadline - time.monotonic()) / 2))

    def time_left(self) -> float:
        """Seconds until the answer must end."""
        return self.stop_at - time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSetup:
    """A session, its registry and the hooks: enough to change the state of its turn."""

    session: SessionManager
    registry: TurnRegistry
    hooks: RuntimeHooks = RuntimeHooks()

    async def apply(self, head: SessionHead, event: state_events.Event) -> SessionHead:
        """Apply an event and return the session after it. Raises `Moved` if the session has moved on."""
        change = state.transition(head, event, self.session.now(), lease_seconds=self.session.settings.lease_seconds)
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

    async def end(
        self, head: SessionHead | None, run: str, answer: SessionMessage
    ) -> tuple[SessionHead | None, SessionMessage]:
        """End the run's turn with this answer, or let it wait. An answer that the store rejects is reduced.

        Returns the session after it, as `settle` does, and the answer as it is stored.
        """
        event = (state_events.Wait if answer.status == "waiting" else state_events.End)(run, answer)
        try:
            return await self.settle(lambda _: event, head), answer
        except StorageRejected:
            logger.exception("answer cannot be stored as it is")
            answer = reduced(answer)
            return await self.settle(lambda _: state_events.End(run, answer), head), answer

    async def is_alive(self, turn: LiveTurn, key: str | None = None) -> bool:
        """Whether the process of a running turn has shown a sign of life within a lease. `key`: another session's."""
        newest = await self.registry.read(key or self.session.key, turn.journal, newest=True)
        return not self.is_dead(turn, newest[-1] if newest else None)

    def is_dead(self, turn: LiveTurn, last: Chunk | None) -> bool:
        """Whether the process of a running turn is gone, by the last chunk of its journal. It may have handed over."""
        if last is not None and last.run == turn.run[:SHORT_RUN] and is_handed_over(last.lines):
            return True
        last_at = last.at if last is not None else None
        return state.is_dead(turn, last_at, self.session.now(), self.session.settings.lease_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSetup(SessionSetup):
    """What all turns of one runner share: also the agent, its model and its meter."""

    agent: Agent
    provider: LLMProvider
    overrides: Overrides
    model: str
    """The name of the model that answers."""
    summaries: Callable[[], SummaryPipeline]
    meter: Meter
    agent_name: str | None = None
    """The agent's name in the project. None: it has only one."""
    name: Callable[[], Coroutine[Any, Any, str]] | None = None
    """Names the session. None: its clients do."""
