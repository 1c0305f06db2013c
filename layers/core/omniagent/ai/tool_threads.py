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
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=self._work, args=(context, function, future), name="omniagent-tool", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as exc:
            self._slots.release()
            raise ToolsBusy("The process cannot start another thread for a tool.") from exc
        return await future

    def _work(
        self, context: contextvars.Context, function: Callable[[], Result], future: "asyncio.Future[Result]"
    ) -> None:
        result = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        except BaseException as exc:
            error = exc
        self._slots.release()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            future.get_loop().call_soon_threadsafe(_settle, future, result, error)


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:
        # StopIteration cannot pass through a future; SystemExit and its kind would end the event loop.
        wrapped = RuntimeError(f"the function raised {type(error).__name__}")
        wrapped.__cause__ = error
        future.set_exception(wrapped)


tool_threads = ToolThreads()
"""The threads of this process."""
