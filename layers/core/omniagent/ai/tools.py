"""Tools: what an agent can do, with a strict schema made from annotations.

Two ways to write one:

    class Weather(Tool):
        \"\"\"Today's weather in a city.\"\"\"

        class Arguments(BaseModel):
            city: str

        async def __call__(self, arguments: Arguments) -> str: ...

    @tool
    async def weather(city: str) -> str:
        \"\"\"Today's weather in a city.\"\"\"
"""

import asyncio
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from omniagent.ai.providers.llm_provider import ToolSpec
from omniagent.ai.schema import strict_schema
from omniagent.errors import ConfigurationError, InvalidArguments
from omniagent.protocol.plain_json import plain

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class Tool(ABC):
    """A tool of an agent. A subclass names its `Arguments` and implements `__call__`."""

    name: ClassVar[str] = ""
    description: ClassVar[str] = ""
    timeout_seconds: ClassVar[float | None] = None
    """Overrides the TOOL_TIMEOUT_SECONDS setting for this tool."""

    Arguments: type[BaseModel]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if inspect.isabstract(cls):
            return
        arguments = getattr(cls, "Arguments", None)
        if not (isinstance(arguments, type) and issubclass(arguments, BaseModel)):
            raise ConfigurationError(f"tool {cls.__name__} needs an inner class Arguments(BaseModel)")
        cls.name = cls.__dict__.get("name") or _snake(cls.__name__)
        cls.description = cls.__dict__.get("description") or inspect.getdoc(cls) or ""
        if not _NAME.fullmatch(cls.name):
            raise ConfigurationError(f"tool name {cls.name!r} may hold only letters, digits, _ and -, 64 at most")

    @abstractmethod
    async def __call__(self, arguments: Any) -> Any:
        """Run the tool. Return text or anything JSON; raise `ToolError` with what the model should correct."""

    @cached_property
    def spec(self) -> ToolSpec:
        parameters, strict = strict_schema(self.Arguments)
        return ToolSpec(name=self.name, description=self.description, parameters=parameters, strict=strict)

    def parse(self, arguments: str) -> BaseModel:
        """Validate the text that the model wrote. The error tells the model what to correct."""
        try:
            return self.Arguments.model_validate_json(arguments or "{}")
        except ValidationError as exc:
            problems = "; ".join(
                f"{'.'.join(str(key) for key in error['loc']) or 'arguments'}: {error['msg']}"
                for error in exc.errors(include_url=False, include_input=False)[:8]
            )
            raise InvalidArguments(f"Invalid arguments for {self.name}: {problems}") from exc


class FunctionTool(Tool):
    """A tool made by `@tool` from an annotated function, which stays at hand as `function`."""

    Arguments = BaseModel

    def __init__(self, function: Callable[..., Any], *, name: str, description: str, timeout: float | None) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"tool name {name!r} may hold only letters, digits, _ and -, 64 at most")
        self.function = function
        self.name = name  # type: ignore[misc]  # one class serves every function, so these are per instance
        self.description = description  # type: ignore[misc]
        self.timeout_seconds = timeout  # type: ignore[misc]
        self.Arguments = _arguments_of(function, name)

    async def __call__(self, arguments: BaseModel) -> Any:
        values = {name: getattr(arguments, name) for name in type(arguments).model_fields}
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**values)
        # A sync function may block: it runs in a thread so that the stream goes on.
        return await asyncio.to_thread(self.function, **values)


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout_seconds: float | None = None
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_seconds: float | None = None,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Turn an annotated function, async or not, into a tool. Its docstring tells the model what it does."""

    def make(function: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(
            function,
            name=name or function.__name__,
            description=description or inspect.getdoc(function) or "",
            timeout=timeout_seconds,
        )

    return make if function is None else make(function)


def render_output(output: Any, limit: int) -> Any:
    """Return a tool's result as plain JSON, or as cut text when it is longer than `limit`."""
    if isinstance(output, BaseModel):
        output = output.model_dump(mode="json")
    output = plain(output)
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return output if len(text) <= limit else f"{text[:limit]}\n[cut: {len(text) - limit} more characters]"


def _arguments_of(function: Callable[..., Any], tool_name: str) -> type[BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(f"tool {tool_name}: parameter {parameter.name!r} must be an ordinary one")
        if parameter.name not in hints:
            raise ConfigurationError(f"tool {tool_name}: annotate the parameter {parameter.name!r} with its type")
        default: Any = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    return create_model(f"{tool_name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
