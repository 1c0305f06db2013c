"""The process's one event loop, kept across invocations so that open connections stay warm."""

import asyncio
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _kept() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def get_loop() -> asyncio.AbstractEventLoop:
    """The kept loop, made the current one: Mangum asks asyncio for it, and `asyncio.run` elsewhere unsets it."""
    loop = _kept()
    asyncio.set_event_loop(loop)
    return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on the kept loop. What it leaves running goes on with the next invocation, not before."""
    return get_loop().run_until_complete(work)
