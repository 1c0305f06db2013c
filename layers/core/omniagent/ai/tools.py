"""Tools of an agent, with a strict schema generated from annotations.

Two ways to write one:

    @tool
    async def weather(city: str, context: RunContext) -> str:
        \"\"\"Today's weather in a city.\"\"\"

    class Weather(Tool):
        \"\"\"Today's weather in a city.\"\"\"

        class Arguments(BaseModel):
            city: str

        async def __call__(self, arguments: Arguments, context: RunContext) -> str: ...

The context is optional in both. The model never sees it.
"""

import asyncio
import contextvars
import inspect
import json
import logging
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypedDict, Unpack, overload

from pydantic import BaseModel, ValidationError
from typing_extensions import TypeVar

from omniagent.ai.context import Deps, Deps_contra, RunContext
from omniagent.ai.providers.llm_provider import ToolSpec
from omniagent.ai.schema import check_call, check_model, read_signature, strict_schema
from omniagent.errors import ConfigurationError, InvalidArguments, OmniAgentError, ToolsBusy
from omniagent.messages import DataPart, plain_text
from omniagent.protocol.plain_json import plain
from omniagent.team_code import team_code
from omniagent.validation import check_rule, problems_of

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 30.0
"""Timeout of one tool call, unless the tool sets its own."""
OUTPUT_CHARS = 20_000
"""Maximum length of a tool's output; longer output is truncated."""
MAX_THREADS = 64
"""Maximum number of sync tools that run at once."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

P = ParamSpec("P")
R = TypeVar("R", default=Any)
Model = TypeVar("Model", bound=BaseModel, default=BaseModel)
Verdict = bool | str | None
"""Whether a call needs approval. Text means yes, and is the reason."""
Approval = bool | Callable[[RunContext[Deps], Any], Verdict | Awaitable[Verdict]]
"""A bool, or a rule: a function of the context and the validated arguments, async or not."""
ContextFunction = (
    Callable[Concatenate[RunContext[Deps], ...], R]
    | Callable[Concatenate[Any, RunContext[Deps], ...], R]
    | Callable[Concatenate[Any, Any, RunContext[Deps], ...], R]
    | Callable[Concatenate[Any, Any, Any, RunContext[Deps], ...], R]
    | Callable[Concatenate[Any, Any, Any, Any, RunContext[Deps], ...], R]
)
"""A function that takes the context, at any of the places that a type can name."""


class Tool(ABC, Generic[Deps_contra]):
    """A tool of an agent. A subclass defines `Arguments` and implements `async def __call__`.

    `Tool[Shop]` is for agents with `deps` of that type, `Tool[object]` for every agent.
    """

    name: str = ""
    description: str = ""
    timeout_seconds: float = TIMEOUT_SECONDS
    approval: Approval[Any] = False
    """Whether a call waits for a human's approval. In a class, a rule is a method."""
    is_client: bool = False
    """Only the client can run it: every call waits for its output."""
    retry_safe: bool = False
    """If its process dies, a call is run again with the same `call_id`. Otherwise its outcome counts as unknown."""

    Arguments: type[BaseModel]
    _takes_context: bool = False

    def __init_subclass__(cls, *, described: bool = True, **kwargs: Any) -> None:
        """Check the class and name the tool after it, unless (not `described`) its instances have their own names."""
        super().__init_subclass__(**kwargs)
        if inspect.isabstract(cls) or not described:
            return
        check_model(f"tool {cls.__name__}", "Arguments", getattr(cls, "Arguments", None))
        cls._takes_context = check_call(cls)
        cls.name = cls.__dict__.get("name") or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        doc = inspect.getdoc(cls)  # its own or that of a base; that of `Tool` is for developers
        cls.description = cls.__dict__.get("description") or (doc if doc and doc != inspect.getdoc(Tool) else "")

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the tool: `async def __call__(self, arguments, context)`, or without the context.

        Return text or any JSON value. Raise `ToolError` to tell the model what to correct.
        """

    @cached_property
    def spec(self) -> ToolSpec:
        parameters, strict = strict_schema(self.Arguments)
        return ToolSpec(name=self.name, description=self.description, parameters=parameters, strict=strict)

    def parse(self, arguments: str) -> BaseModel:
        """Validate the text that the model wrote. The error tells the model what to correct."""
        said = f"Invalid arguments for {self.name}: {{}}"
        return validated(self.Arguments, arguments or "{}", InvalidArguments, said)

    async def approval_reason(self, arguments: BaseModel, context: RunContext[Deps_contra]) -> str | None:
        """Return why a call needs approval ("" if no reason is given), or None if it may run at once."""
        verdict: Any = self.approval
        if callable(verdict):
            verdict = verdict(context, arguments)
            verdict = await verdict if inspect.isawaitable(verdict) else verdict
        match verdict:
            case None | False:
                return None
            case True:
                return ""
            case str() if verdict.strip():
                return plain_text(verdict)
        raise TypeError(
            f"the approval rule of {self.name} returned {verdict!r:.100}, not True, False, None or a reason"
        )

    async def invoke(self, arguments: BaseModel, context: RunContext[Deps_contra]) -> Any:
        """Run any kind of tool with the arguments that `parse` returned. Later emits, from its thread, are dropped."""
        sink, is_running = context.sink, True

        def pass_on(part: DataPart, transient: bool) -> None:
            if is_running and sink is not None:
                sink(part, transient)

        try:
            return await self._run(arguments, replace(context, sink=pass_on))
        finally:
            is_running = False

    def _run(self, arguments: BaseModel, context: RunContext[Deps_contra]) -> Awaitable[Any]:
        call: Awaitable[Any] = self(arguments, context) if self._takes_context else self(arguments)
        return call


class ToolThreads:
    """At most `limit` running calls of sync tools, each in a thread of its own, never in the way of the process's end.

    `asyncio.to_thread` has one small pool for everything in the process: a few hung tools would starve name look-ups
    and token checks. Python cannot end a thread: that of a call that timed out counts until its function returns. When
    too many are still running, the next call is refused at once instead of queued.
    """

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self._limit = limit
        self._slots = threading.BoundedSemaphore(limit)

    async def run(self, function: Callable[[], R]) -> R:
        """Call a function in a daemon thread, with the caller's context variables. Raises `ToolsBusy` when full."""
        if not self._slots.acquire(blocking=False):
            logger.warning("no thread left for a sync tool", extra={"limit": self._limit})
            raise ToolsBusy(f"All {self._limit} threads for tools are busy. Answer without it, or try again later.")
        context = contextvars.copy_context()
        returned: Future[tuple[Any, BaseException | None]] = Future()
        returned.set_running_or_notify_cancel()  # from here on, no cancellation keeps the thread from reporting

        def work() -> None:
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = context.run(function), None
            except BaseException as exc:  # raised below: a future takes no `StopIteration`
                outcome = None, exc
            self._slots.release()
            returned.set_result(outcome)

        threading.Thread(target=work, name="omniagent-tool", daemon=True).start()
        result, error = await asyncio.wrap_future(returned)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # or an error


tool_threads = ToolThreads()
"""The threads of this process."""


class FunctionTool(Tool[Deps_contra], Generic[P, R, Deps_contra], described=False):
    """A tool made by `@tool`. Calling it calls the original function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        approval: Approval[Deps_contra] = False,
        retry_safe: bool = False,
    ) -> None:
        if not inspect.isroutine(function):
            used = "@client_tool" if self.is_client else "@tool"
            raise ConfigurationError(
                f"{used} takes a function, not {function!r}: write {used} above `def`, or {used}(name=…)"
            )
        self.function: Callable[P, R] = function
        self.name = name or function.__name__
        self.description = description or inspect.getdoc(function) or ""
        self.timeout_seconds = timeout_seconds
        self.approval = approval
        self.retry_safe = retry_safe
        self.Arguments, self._context_name = read_signature(function, self.name)
        check_tool(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def _run(self, arguments: BaseModel, context: RunContext[Deps_contra]) -> Any:
        values = dict(arguments)
        if self._context_name is not None:
            values[self._context_name] = context
        call: Callable[[], Any] = partial(self.function, **values)
        # A sync function may block, so it runs in a thread and the stream continues.
        result = call() if inspect.iscoroutinefunction(self.function) else await tool_threads.run(call)
        return await result if inspect.isawaitable(result) else result


class _ToolOptions(TypedDict, total=False):
    name: str | None
    description: str | None
    timeout_seconds: float
    retry_safe: bool


class ToolDecorator(Protocol):
    """What `@tool(…)` with options returns."""

    @overload
    def __call__(self, function: ContextFunction[Deps, R], /) -> FunctionTool[..., R, Deps]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTool[P, R, object]: ...


@overload
def tool(function: ContextFunction[Deps, R], /) -> FunctionTool[..., R, Deps]: ...
@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R, object]: ...
@overload
def tool(*, approval: bool = False, **options: Unpack[_ToolOptions]) -> ToolDecorator: ...
@overload
def tool(
    *, approval: Approval[Deps], **options: Unpack[_ToolOptions]
) -> Callable[[Callable[P, R]], FunctionTool[P, R, Deps]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Turn an annotated function (async or not) into a tool. The model reads its docstring.

    With `approval`, a call waits for a human's approval: always, or if a rule requires it. With `retry_safe`, a call
    whose process died is run again, with the same `RunContext.call_id`.
    """

    make: Any = partial(FunctionTool, **options)
    return make if function is None else make(function)


def validated(model: type[Model], text: str, error: type[OmniAgentError], said: str) -> Model:
    """Validate JSON that a model wrote. What is wrong, also a validator that fails, is put into what the error says."""
    unchecked = error(said.format("they could not be checked. Try other values."))
    try:
        with team_code("validator failed", unchecked, passes=(ValidationError,), model=model.__name__):
            return model.model_validate_json(text)
    except ValidationError as exc:
        raise error(said.format(problems_of(exc, whole="JSON"))) from exc


def render_output(output: Any, limit: int = OUTPUT_CHARS) -> Any:
    """Return a tool's result as plain JSON, or as truncated text if it is longer than `limit`."""
    output = plain(output)
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return output if len(text) <= limit else cut_text(text, limit)


def cut_text(text: str, limit: int = OUTPUT_CHARS) -> str:
    """Truncate text that is longer than `limit`, and append how much is missing."""
    return text if len(text) <= limit else f"{text[:limit]}\n[cut: {len(text) - limit} more characters]"


def check_tool(tool: Tool) -> None:
    """Raise `ConfigurationError` for a name that model APIs reject, and for any other option that cannot work."""
    name, seconds = tool.name, tool.timeout_seconds
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"tool name {name!r} may hold only letters, digits, _ and -, 64 at most")
    if not isinstance(tool.description, str):
        raise ConfigurationError(f"tool {name}: description must be text, not {tool.description!r:.100}")
    if not tool.description.strip():
        raise ConfigurationError(f"tool {name} has no docstring: write what it does and when to use it")
    if not isinstance(tool.retry_safe, bool):
        raise ConfigurationError(f"tool {name}: retry_safe must be True or False, not {tool.retry_safe!r:.100}")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ConfigurationError(f"tool {name}: timeout_seconds must be a number more than 0, not {seconds!r}")
    if not isinstance(tool.approval, bool):
        kinds = "True, False or a function"
        check_rule(f"tool {name}: approval", tool.approval, "context", "arguments", kinds=kinds)
