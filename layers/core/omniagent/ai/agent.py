"""The agent: what a team writes."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from omniagent.ai.providers.llm_provider import Overrides, ToolSpec
from omniagent.ai.tools import Tool
from omniagent.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a turn knows of itself, for instructions and callbacks."""

    user: str
    session_id: str
    turn_number: int
    query: str
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


Instructions = str | Callable[[RunContext], str | Awaitable[str]]
ToolCallback = Callable[[RunContext, str, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Called as the turn goes on. A callback that raises is logged and changes nothing."""

    on_start: Callable[[RunContext], Awaitable[None]] | None = None
    on_tool_start: ToolCallback | None = None
    """Called with the tool's name and its input."""
    on_tool_end: ToolCallback | None = None
    """Called with the tool's name and its output, or the `ToolError`."""
    on_finish: Callable[[RunContext, Any], Awaitable[None]] | None = None
    """Called with the stored `RunResult`."""


@dataclass(frozen=True, slots=True)
class Agent:
    """Instructions, tools and a model. `instructions` may be a function of the run's context."""

    name: str
    instructions: Instructions
    tools: Sequence[Tool] = ()
    model: str | None = None
    """None takes the OMNIAGENT_MODEL setting."""
    callbacks: Callbacks = Callbacks()
    overrides: Overrides = Overrides()
    fallback: str = "Sorry, I could not answer that. Please try again."
    """The answer that is streamed and stored when the model fails."""

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(f"agent {self.name}: two tools are named {twice[0]!r}")

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    def tool_specs(self) -> list[ToolSpec]:
        return [tool.spec for tool in self.tools]

    async def instructions_for(self, context: RunContext) -> str:
        if isinstance(self.instructions, str):
            return self.instructions
        made = self.instructions(context)
        return made if isinstance(made, str) else await made
