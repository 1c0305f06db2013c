"""Threads for sync tools: their own, bounded, and never in the way of the process's end.

`asyncio.to_thread` has one small pool for everything in the process: a few hung tools would starve name look-ups and
token checks. A call that times out leaves its thread running, since Python cannot end a thread. So every call gets a
thread of its own, and when too many are still running the next call is refused at once instead of queued.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from omniagent.errors import ToolsBusy

logger = logging.getLogger(__name__)

MAX_THREADS = 64

Result = TypeVar("Result")
Outcome = tuple[Any, BaseException | None]
"""A result or an error: `StopIteration` cannot be the exception of a future."""


class ToolThreads:
    """At most `limit` running calls. A thread that was given up counts until its function returns."""

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self._limit = limit
        self._slots = threading.BoundedSemaphore(limit)

    async def run(self, function: Callable[[], Result]) -> Result:
        """Call a function in a daemon thread, with the caller's context variables. Raises `ToolsBusy` when full."""
        if not self._slots.acquire(blocking=False):
            logger.warning("no thread left for a sync tool", extra={"limit": self._limit})
            raise ToolsBusy(f"All {self._limit} threads for tools are busy. Answer without it, or try again later.")
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=self._work, args=(context, function, future), name="omniagent-tool", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as exc:
            self._slots.release()
            raise ToolsBusy("The process cannot start another thread for a tool.") from exc
        result: Result
        result, error = await future
        if error is not None:
            raise error
        return result

    def _work(
        self, context: contextvars.Context, function: Callable[[], Any], future: "asyncio.Future[Outcome]"
    ) -> None:
        outcome: Outcome
        try:
            outcome = context.run(function), None
        except BaseException as exc:  # raised again in the task that waits
            outcome = None, exc
        self._slots.release()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            future.get_loop().call_soon_threadsafe(_settle, future, outcome)


def _settle(future: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


tool_threads = ToolThreads()
"""The threads of this process."""
