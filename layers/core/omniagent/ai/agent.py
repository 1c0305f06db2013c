"""`Agent`, the object that a team writes, and the dependencies that its tools share."""

import asyncio
import contextvars
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncContextDecorator,
    AsyncExitStack,
    ContextDecorator,
)
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, Never, TypedDict, Unpack, overload

from pydantic import BaseModel

from omniagent.ai.context import Callbacks, Deps, RunContext
from omniagent.ai.providers.llm_provider import OutputFormat, Overrides, ToolSpec
from omniagent.ai.result import Output_co
from omniagent.ai.schema import check_model, strict_schema
from omniagent.ai.tools import Model, Tool, check_tool, validated
from omniagent.errors import ConfigurationError, InvalidOutput
from omniagent.settings import Budget
from omniagent.validation import check, check_fields, check_rule


@dataclass(slots=True)
class _OpenDeps:
    """One opening of the dependencies. One task enters and exits the context manager, as task groups require."""

    ready: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None]" = field(init=False)

    @property
    def usable(self) -> bool:
        return not self.task.done() and not self.closing.is_set()


class SharedDeps:
    """A plain value, or a factory of a value or of a context manager (sync or async).

    The end of `asyncio.run` closes it if nothing else did. Each event loop opens its own: clients are bound to a loop.
    """

    def __init__(self, owner: str, source: Any) -> None:
        self._source = source
        self._openings: dict[asyncio.AbstractEventLoop, _OpenDeps] = {}
        # Any other object is the value itself, even if it can be called.
        self._is_factory = inspect.isroutine(source) or inspect.isclass(source) or isinstance(source, partial)
        where = f"{owner}: deps"
        if inspect.isawaitable(source):
            source.close() if inspect.iscoroutine(source) else None
            raise ConfigurationError(f"{where} is a coroutine: give the function itself, without calling it")
        if isinstance(source, (AsyncContextDecorator, ContextDecorator)) and hasattr(source, "gen"):
            raise ConfigurationError(f"{where} is a context manager in use: give its function, without calling it")
        if inspect.isasyncgenfunction(source) or inspect.isgeneratorfunction(source):
            raise ConfigurationError(f"{where} is a generator: decorate it with @asynccontextmanager")
        try:
            inspect.signature(source).bind() if self._is_factory else None
        except TypeError as exc:
            raise ConfigurationError(f"{where} is called without arguments: {exc}") from exc
        except ValueError:  # a built-in without a signature
            return

    async def open(self) -> Any:
        """Return the dependencies. Concurrent first calls share one opening; a failed one is retried."""
        if not self._is_factory:
            return self._source
        loop = asyncio.get_running_loop()
        opening = self._openings.get(loop)
        if opening is None or not opening.usable:
            self._openings = {each: known for each, known in self._openings.items() if not each.is_closed()}
            opening = self._openings[loop] = _OpenDeps()
            # An empty context: the dependencies belong to the process, not to the turn that opens them.
            opening.task = asyncio.create_task(self._live(opening), context=contextvars.Context())
        await asyncio.wait([opening.task, opening.ready], return_when=asyncio.FIRST_COMPLETED)
        if opening.ready.done():
            return opening.ready.result()
        if opening.task.cancelled():
            raise ConfigurationError("the agent was closed while opening")
        return opening.task.result()  # raises

    async def aclose(self) -> None:
        """Close this event loop's dependencies if they are open. The next use opens them again."""
        opening = self._openings.pop(asyncio.get_running_loop(), None)
        if opening is None or not opening.usable:
            return
        opening.closing.set()
        if not opening.ready.done():
            opening.task.cancel()
        await asyncio.wait([opening.task])
        if not opening.task.cancelled():
            opening.task.result()

    async def _live(self, opening: _OpenDeps) -> None:
        value = self._source()
        value = await value if inspect.isawaitable(value) else value
        async with AsyncExitStack() as stack:
            if hasattr(value, "__aenter__"):
                value = await stack.enter_async_context(value)
            elif hasattr(value, "__enter__"):
                value = stack.enter_context(value)
            opening.ready.set_result(value)
            await opening.closing.wait()


Instruction = str | Callable[[RunContext[Deps]], str | Awaitable[str]]
Instructions = Instruction[Deps] | Sequence[Instruction[Deps]]
"""What the model is told: text, or a function of the context that returns it, async or not, or a list of these."""
Opening = Awaitable[Deps] | AbstractAsyncContextManager[Deps] | AbstractContextManager[Deps]


def _check_instructions(where: str, instructions: Any) -> None:
    for each in instructions if isinstance(instructions, list | tuple) else (instructions,):
        if not isinstance(each, str):
            check_rule(where, each, "context", kinds="text, or a function")


def _check_chain(where: str, model: Any) -> None:
    names = model.split(",") if isinstance(model, str) else model
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"{where} must be the name of a model, or a list of names, not {model!r:.100}")
    if model and not all(name.strip() for name in names):
        raise ConfigurationError(f"{where} names an empty model: {model!r}")


def _check_suggestions(where: str, suggestions: Any) -> None:
    if not isinstance(suggestions, list | tuple) or not all(isinstance(each, str) and each for each in suggestions):
        raise ConfigurationError(f"{where} must be a list of texts: write suggestions=[…]")


class _AgentOptions(TypedDict, Generic[Deps, Output_co], total=False):
    """The fields of `Agent` that have a default."""

    model: str | Sequence[str] | None
    callbacks: Callbacks[Deps]
    overrides: Overrides
    summary: Overrides
    naming: Overrides | None
    output: type[Output_co] | None
    fallback: str
    budget: Budget | None
    title: str
    description: str
    suggestions: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Agent(Generic[Deps, Output_co]):
    """Instructions, tools and a model. `instructions` may be a function of the run's context, or a list with functions.

    `Agent[Shop, Ticket]`, inferred from `deps` and `output`, has tools for `RunContext[Shop]` and answers with a
    `Ticket`.
    """

    name: str = field(kw_only=False)
    instructions: Annotated[Instructions[Deps], check(_check_instructions)] = field(kw_only=False)
    tools: Sequence[Tool[Deps]] = field(default=(), kw_only=False)
    model: Annotated[str | Sequence[str] | None, check(_check_chain)] = None
    """None: the OMNIAGENT_MODEL setting. Several: if one fails, the next one answers."""
    callbacks: Callbacks[Deps] = Callbacks()
    overrides: Overrides = Overrides()
    summary: Overrides = Overrides()
    """Overrides for summaries and names of this agent's sessions: a cheaper model, or `instructions` of your own."""
    naming: Overrides | None = None
    """The same for names alone. None: those for summaries, without their `instructions`."""
    output: type[Output_co] | None = None
    """The answer is JSON, validated against this model."""
    deps: Deps | Callable[[], Opening[Deps] | Deps] | None = field(default=None, repr=False)
    """Shared by the tools as `context.deps`: a value, or a factory of a value or of a context manager."""
    fallback: str = "Sorry, I could not answer that. Please try again."
    """The answer that is streamed and stored when the model fails."""
    budget: Budget | None = None
    """What one user may spend on this agent, within the user's own budget."""
    title: str = ""
    """What people call it: the playground shows it. Empty: the name."""
    description: str = ""
    """One sentence for people. The model does not read it."""
    suggestions: Annotated[Sequence[str], check(_check_suggestions)] = ()
    """Questions to begin with, in the playground. Empty: one for each tool, from its docstring."""

    if TYPE_CHECKING:  # a union of these cannot be inferred

        @overload
        def __init__(
            self: "Agent[None, BaseModel]",
            name: str,
            instructions: Instructions[None],
            tools: Sequence[Tool[None]] = ...,
            **options: Unpack[_AgentOptions[None, Never]],
        ) -> None: ...
        @overload
        def __init__(
            self: "Agent[None, Model]",
            name: str,
            instructions: Instructions[None],
            tools: Sequence[Tool[None]] = ...,
            **options: Unpack[_AgentOptions[None, Model]],
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            instructions: Instructions[Deps],
            tools: Sequence[Tool[Deps]] = ...,
            *,
            deps: Callable[[], Opening[Deps]],
            **options: Unpack[_AgentOptions[Deps, Output_co]],
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            instructions: Instructions[Deps],
            tools: Sequence[Tool[Deps]] = ...,
            *,
            deps: Callable[[], Deps],
            **options: Unpack[_AgentOptions[Deps, Output_co]],
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            instructions: Instructions[Deps],
            tools: Sequence[Tool[Deps]] = ...,
            *,
            deps: Deps,
            **options: Unpack[_AgentOptions[Deps, Output_co]],
        ) -> None: ...
        def __init__(self, name: str, instructions: Any, tools: Any = ..., **options: Any) -> None: ...

    def __post_init__(self) -> None:
        owner = f"agent {self.name}"
        object.__setattr__(self, "tools", _checked_tools(owner, self.tools))
        if self.name == "":
            raise ConfigurationError("Agent(name=…) must not be empty")
        if isinstance(self.overrides, Overrides) and self.overrides.instructions:
            raise ConfigurationError(f"{owner}: overrides.instructions are for summaries: write Agent(instructions=…)")
        if self.output is not None:
            check_model(owner, "output", self.output)
        check_fields(owner, self)
        _ = self.tool_specs, self.output_format, self._shared  # each refuses what it cannot be made of

    @cached_property
    def tool_specs(self) -> Sequence[ToolSpec]:
        """The tools as the model sees them, sorted: in another order they would be another prompt."""
        return tuple(sorted((tool.spec for tool in self.tools), key=lambda spec: spec.name))

    @cached_property
    def output_format(self) -> OutputFormat | None:
        """The format that the model must answer in. None for free text."""
        if self.output is None:
            return None
        schema, strict = strict_schema(self.output)
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", self.output.__name__)[:64]
        return OutputFormat(name=name, schema=schema, strict=strict)

    @cached_property
    def _shared(self) -> SharedDeps:
        return SharedDeps(f"agent {self.name}", self.deps)

    @cached_property
    def tools_by_name(self) -> Mapping[str, Tool[Deps]]:
        return {tool.name: tool for tool in self.tools}

    @cached_property
    def _instructions(self) -> "Sequence[Instruction[Deps]]":
        if isinstance(self.instructions, list | tuple):
            return self.instructions
        return [self.instructions]  # type: ignore[list-item]  # text is a sequence of texts as well

    @cached_property
    def fixed_instructions(self) -> str:
        """The instructions that are text."""
        return "\n\n".join(each for each in self._instructions if isinstance(each, str) and each)

    async def prompt_for(self, context: RunContext[Deps]) -> tuple[str, str]:
        """Return the instructions that are text, and what the functions return for this turn."""
        texts: list[str] = []
        for instruction in self._instructions:
            if isinstance(instruction, str):
                continue
            text: Any = instruction(context)
            text = await text if inspect.isawaitable(text) else text
            if not isinstance(text, str):
                name = type(text).__name__
                raise ConfigurationError(f"agent {self.name}: its instructions returned {name}, not text")
            texts.append(text)
        return self.fixed_instructions, "\n\n".join(filter(None, texts))

    def parse_output(self, text: str) -> Output_co:
        """Validate an answer. Raises `InvalidOutput`, which tells the model what to correct."""
        if self.output is None:
            raise ConfigurationError(f"agent {self.name} has no output: its answer is free text")
        said = f"The answer does not fit the schema {self.output.__name__}: {{}}. Answer again with the whole JSON."
        return validated(self.output, text, InvalidOutput, said)

    @cached_property
    def open_deps(self) -> Callable[[], Coroutine[Any, Any, Deps]]:
        """Returns the shared dependencies, opened on first use, once per event loop. A failed opening is retried."""
        return self._shared.open

    async def aclose(self) -> None:
        """Close the shared dependencies."""
        await self._shared.aclose()


def _checked_tools(owner: str, tools: Any) -> tuple[Tool, ...]:
    if isinstance(tools, Tool) or not isinstance(tools, Iterable):
        raise ConfigurationError(f"{owner}: tools must be a list: write tools=[…]")
    checked = tuple(tools)
    for each in checked:
        if isinstance(each, type) and issubclass(each, Tool):
            raise ConfigurationError(f"{owner}: {each.__name__} is a class: write {each.__name__}() in tools")
        if inspect.isroutine(each):
            raise ConfigurationError(f"{owner}: {each.__name__} is a plain function: decorate it with @tool")
        if not isinstance(each, Tool):
            raise ConfigurationError(f"{owner}: {each!r} is not a tool: use @tool or a subclass of Tool")
        check_tool(each)
    names = [each.name for each in checked]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"{owner}: two tools are named {twice[0]!r}")
    return checked
