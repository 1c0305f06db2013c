"""The process's one event loop, kept across invocations so that connections stay open."""

import asyncio
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _process_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def get_loop() -> asyncio.AbstractEventLoop:
    """Return the loop and make it the current one: Mangum uses the current loop, and `asyncio.run` unsets it."""
    loop = _process_loop()
    asyncio.set_event_loop(loop)
    return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on the loop. Tasks that it leaves running continue in the next invocation."""
    return get_loop().run_until_complete(work)
