"""The callbacks of an agent, called so that none of them can harm the turn."""

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any

from omniagent.ai.context import RunContext
from omniagent.errors import ConfigurationError

logger = logging.getLogger(__name__)

ToolCallback = Callable[[RunContext[Any], str, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Called as the turn goes on. A callback that raises is logged and changes nothing."""

    on_start: Callable[[RunContext[Any]], Awaitable[None]] | None = None
    on_tool_start: ToolCallback | None = None
    """Called with the tool's name and its input."""
    on_tool_end: ToolCallback | None = None
    """Called with the tool's name and its output, or the `ToolError`."""
    on_finish: Callable[[RunContext[Any], Any], Awaitable[None]] | None = None
    """Called with the stored `RunResult`."""

    def __post_init__(self) -> None:
        for each in fields(self):
            callback = getattr(self, each.name)
            if callback is not None and not _may_be_async(callback):
                raise ConfigurationError(f"Callbacks: {each.name} must be an async function: write `async def`")


def _may_be_async(callback: Any) -> bool:
    """Functions show whether they are async; of other callables only the call does."""
    if inspect.isroutine(callback) or isinstance(callback, functools.partial):
        return inspect.iscoroutinefunction(callback)
    return callable(callback)


async def call_back(callback: Callable[..., Awaitable[None]] | None, *arguments: Any) -> None:
    """Call a callback if there is one. Whatever it raises is logged and goes no further."""
    if callback is None:
        return
    try:
        await callback(*arguments)
    except Exception:
        logger.exception("callback failed", extra={"callback": getattr(callback, "__name__", repr(callback))})
