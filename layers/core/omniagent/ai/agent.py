"""The agent: what a team writes."""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from omniagent.ai.callbacks import Callbacks
from omniagent.ai.context import RunContext
from omniagent.ai.deps import SharedDeps
from omniagent.ai.providers.llm_provider import OutputFormat, Overrides, ToolSpec
from omniagent.ai.schema import InvalidJson, strict_schema, validated
from omniagent.ai.signatures import check_model
from omniagent.ai.tools import Tool
from omniagent.errors import ConfigurationError, InvalidOutput

Instructions = str | Callable[[RunContext[Any]], str | Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Agent:
    """Instructions, tools and a model. `instructions` may be a function of the run's context, async or not."""

    name: str
    instructions: Instructions
    tools: Sequence[Tool] = ()
    model: str | None = None
    """None takes the OMNIAGENT_MODEL setting."""
    callbacks: Callbacks = Callbacks()
    overrides: Overrides = Overrides()
    summary: Overrides = Overrides()
    """What differs when this agent's sessions are summarized, such as a cheaper model."""
    output: type[BaseModel] | None = None
    """The answer is JSON of this model, validated."""
    deps: Any = field(default=None, repr=False)
    """What tools share, as `context.deps`: a value, a function that makes it, or one that makes a context manager."""
    fallback: str = "Sorry, I could not answer that. Please try again."
    """The answer that is streamed and stored when the model fails."""
    _shared: SharedDeps = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        owner = f"agent {self.name}"
        object.__setattr__(self, "tools", _checked_tools(owner, self.tools))
        object.__setattr__(self, "_shared", SharedDeps(owner, self.deps))
        _check_instructions(owner, self.instructions)
        if self.output is not None:
            check_model(owner, "output", self.output)
        for attribute, kind in _KINDS.items():
            if not isinstance(getattr(self, attribute), kind):
                raise ConfigurationError(f"{owner}: {attribute} must be {_named(kind)}")

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    def tool_specs(self) -> list[ToolSpec]:
        return [tool.spec for tool in self.tools]

    async def instructions_for(self, context: RunContext[Any]) -> str:
        if isinstance(self.instructions, str):
            return self.instructions
        text: Any = self.instructions(context)
        if inspect.isawaitable(text):
            text = await text
        if not isinstance(text, str):
            raise ConfigurationError(f"agent {self.name}: its instructions returned {type(text).__name__}, not text")
        return text

    def output_format(self) -> OutputFormat | None:
        """What the model is asked to answer with; None for free text."""
        return None if self.output is None else _output_format(self.output)

    def parse_output(self, text: str) -> BaseModel:
        """Validate an answer. Raises `InvalidOutput` with what the model should correct."""
        if self.output is None:
            raise ConfigurationError(f"agent {self.name} has no output: its answer is free text")
        try:
            return validated(self.output, text)
        except InvalidJson as exc:
            raise InvalidOutput(
                f"The answer does not fit the schema {self.output.__name__}: {exc}. Answer again with the whole JSON."
            ) from exc

    async def open_deps(self) -> Any:
        """Return what tools share. Opened on first use, once per process; a failed opening is tried again."""
        return await self._shared.open()

    async def aclose(self) -> None:
        """Close what tools share."""
        await self._shared.aclose()


_KINDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "model": (str, type(None)),
    "callbacks": (Callbacks,),
    "overrides": (Overrides,),
    "summary": (Overrides,),
    "fallback": (str,),
}


def _named(kinds: tuple[type, ...]) -> str:
    return " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)


def _checked_tools(owner: str, tools: Any) -> tuple[Tool, ...]:
    if isinstance(tools, Tool) or not isinstance(tools, Iterable):
        raise ConfigurationError(f"{owner}: tools must be a list: write tools=[…]")
    checked = tuple(_checked_tool(owner, each) for each in tools)
    names = [each.name for each in checked]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"{owner}: two tools are named {twice[0]!r}")
    return checked


def _checked_tool(owner: str, each: Any) -> Tool:
    if isinstance(each, Tool):
        return each
    if isinstance(each, type) and issubclass(each, Tool):
        raise ConfigurationError(f"{owner}: {each.__name__} is a class: write {each.__name__}() in tools")
    if inspect.isroutine(each):
        raise ConfigurationError(f"{owner}: {each.__name__} is a plain function: decorate it with @tool")
    raise ConfigurationError(f"{owner}: {each!r} is not a tool: use @tool or a subclass of Tool")


def _check_instructions(owner: str, instructions: Any) -> None:
    if isinstance(instructions, str):
        return
    if not callable(instructions):
        raise ConfigurationError(f"{owner}: instructions must be text or a function that returns text")
    try:
        inspect.signature(instructions).bind(None)
    except TypeError as exc:
        raise ConfigurationError(
            f"{owner}: instructions take the context: write `def instructions(context: RunContext) -> str`"
        ) from exc
    except ValueError:  # a built-in that does not tell
        return


@lru_cache(maxsize=64)
def _output_format(output: type[BaseModel]) -> OutputFormat:
    schema, strict = strict_schema(output)
    return OutputFormat(name=re.sub(r"[^A-Za-z0-9_-]+", "_", output.__name__)[:64], schema=schema, strict=strict)
