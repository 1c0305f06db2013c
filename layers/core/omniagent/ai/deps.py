"""What an agent's tools share: clients, pools, configuration. Opened once per process, on first use."""

import asyncio
import contextvars
import functools
import inspect
from contextlib import AsyncContextDecorator, ContextDecorator
from dataclasses import dataclass, field
from typing import Any

from omniagent.errors import ConfigurationError


@dataclass(slots=True)
class _OpenDeps:
    """One life of the dependencies. Its task enters and leaves the context manager, as task groups require."""

    ready: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    @property
    def usable(self) -> bool:
        here = self.ready.get_loop() is asyncio.get_running_loop()
        return here and self.task is not None and not self.task.done() and not self.closing.is_set()


class SharedDeps:
    """A plain value, or a factory of a value or of a context manager (sync or async).

    `asyncio.run` ends what nobody closed, and a later event loop opens anew: clients belong to their loop.
    """

    def __init__(self, owner: str, source: Any) -> None:
        self._source = source
        self._is_factory = _is_factory(source)
        self._opening: _OpenDeps | None = None
        _check_source(owner, source, is_factory=self._is_factory)

    async def open(self) -> Any:
        """Return the dependencies. Concurrent first calls share one opening; a failed one is tried again."""
        if not self._is_factory:
            return self._source
        opening = self._opening
        if opening is None or not opening.usable:
            opening = self._opening = _OpenDeps()
            # An empty context: the dependencies belong to the process, not to the turn that came first.
            opening.task = asyncio.create_task(self._live(opening), context=contextvars.Context())
        return await asyncio.shield(opening.ready)

    async def aclose(self) -> None:
        """Close the dependencies if they are open. The next use opens them again."""
        opening, self._opening = self._opening, None
        if opening is None or opening.task is None or not opening.usable:
            return
        opening.closing.set()
        if not opening.ready.done():
            opening.task.cancel()
        await asyncio.wait([opening.task])
        if not opening.task.cancelled():
            opening.task.result()

    async def _live(self, opening: _OpenDeps) -> None:
        try:
            value = self._source()
            if inspect.isawaitable(value):
                value = await value
            if hasattr(value, "__aenter__"):
                async with value as entered:
                    await _hold(opening, entered)
            elif hasattr(value, "__enter__"):
                with value as entered:
                    await _hold(opening, entered)
            else:
                await _hold(opening, value)
        except BaseException as exc:
            if opening.ready.done():
                raise
            # Whoever waits gets the error; this task has told it and ends.
            failure = exc if isinstance(exc, Exception) else ConfigurationError("the agent was closed while opening")
            opening.ready.set_exception(failure)
            opening.ready.exception()  # seen, also when every waiter is gone
            if not isinstance(exc, Exception):
                raise


async def _hold(opening: _OpenDeps, value: Any) -> None:
    opening.ready.set_result(value)
    await opening.closing.wait()


def _is_factory(source: Any) -> bool:
    """Functions, methods and classes are called; any other object is the value itself, even if it is callable."""
    return inspect.isroutine(source) or inspect.isclass(source) or isinstance(source, functools.partial)


def _check_source(owner: str, source: Any, *, is_factory: bool) -> None:
    if inspect.isawaitable(source):
        source.close() if inspect.iscoroutine(source) else None
        raise ConfigurationError(f"{owner}: deps is a coroutine: give the function itself, without calling it")
    if isinstance(source, (AsyncContextDecorator, ContextDecorator)) and hasattr(source, "gen"):
        raise ConfigurationError(f"{owner}: deps is a context manager in use: give its function, without calling it")
    if inspect.isasyncgenfunction(source) or inspect.isgeneratorfunction(source):
        raise ConfigurationError(f"{owner}: deps is a generator: decorate it with @asynccontextmanager")
    if is_factory and (needed := _required_parameters(source)):
        raise ConfigurationError(f"{owner}: deps is called without arguments, but takes {', '.join(needed)}")


def _required_parameters(factory: Any) -> list[str]:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a built-in that does not tell
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]
