"""Tasks that somebody owns until they are gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

First = TypeVar("First")
Second = TypeVar("Second")


async def cancelled(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and wait until they are gone; how they ended does not matter any more."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def both(first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]) -> tuple[First, Second]:
    """Run two coroutines at the same time. When one fails, the other is gone before its error is raised."""
    tasks = asyncio.create_task(first), asyncio.create_task(second)
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        await cancelled(*tasks)
        raise
    return tasks[0].result(), tasks[1].result()
