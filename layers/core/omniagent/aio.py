"""Helpers for tasks: wait for a while, cancel in order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)
STOP_SECONDS = 2.0
"""How long cancelled work may take to end. Work that ignores its cancellation is then abandoned."""
First = TypeVar("First")


async def cancelled(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait for them to end. Their results are ignored."""
    for task in tasks:
        task.cancel()
    done, left_behind = await asyncio.wait(tasks, timeout=STOP_SECONDS)
    for task in done:
        if not task.cancelled():
            task.exception()  # otherwise asyncio warns about an unretrieved exception
    if left_behind:
        logger.warning("cancellation ignored", extra={"tasks": [task.get_name() for task in left_behind]})


async def retry_once(work: Callable[[], Awaitable[First]]) -> First:
    """Run something and repeat it once if it is cancelled: `asyncio.run` cancels every task at its end."""
    try:
        return await work()
    except asyncio.CancelledError:
        return await work()


def is_cancelled() -> bool:
    """Whether the current task was cancelled. If not, a `CancelledError` has escaped from other tasks."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def ensure_not_cancelled() -> None:
    """Raise `CancelledError` if the current task was cancelled and some code within it ignored that."""
    if is_cancelled():
        raise asyncio.CancelledError


async def within(seconds: float, work: Coroutine[Any, Any, First]) -> First:
    """Wait up to `seconds` for a MongoDB call. After that it continues on its own. Raises `TimeoutError`.

    It is not cancelled: on Python 3.11, cancelling a MongoDB call during server selection can leave PyMongo's lock held
    forever, and every later call of the process hangs. Such calls end by themselves.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task], timeout=max(0.0, seconds))
    except BaseException:
        await cancelled(task)
        raise
    if not task.done():
        _unattended.add(task)
        task.add_done_callback(_forget)
        raise TimeoutError
    return task.result()


_unattended: "set[asyncio.Task[Any]]" = set()


def _forget(task: "asyncio.Task[Any]") -> None:
    _unattended.discard(task)
    if not task.cancelled() and (exc := task.exception()) is not None:
        logger.info("call that nobody waited for failed", extra={"cause": f"{type(exc).__name__}: {exc}"})
