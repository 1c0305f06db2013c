"""The process's one event loop, kept across invocations so that connections stay open."""

import asyncio
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _process_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on the loop. Tasks that it leaves running continue in the next invocation."""
    return _process_loop().run_until_complete(work)
