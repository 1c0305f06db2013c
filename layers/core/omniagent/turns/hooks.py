"""`TurnHooks`: what the runtime calls as a turn begins, is handed over and ends."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from omniagent.ai.providers.llm_provider import Purpose
from omniagent.ai.result import RunResult
from omniagent.errors import BudgetExceeded, OmniAgentError
from omniagent.messages import Usage
from omniagent.team_code import team_code
from omniagent.validation import check, check_async, check_fields, check_sync

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
