"""A stack for blocking code: it runs in a thread with its own event loop."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from local.stack import Stack, StackOptions, local_stack

T = TypeVar("T")


@dataclass(frozen=True)
class BackgroundStack:
    """A running stack. Call its coroutines with `wait_for`."""

    stack: Stack
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        """The one origin of everything."""
        return self.stack.url

    def wait_for(self, work: Coroutine[Any, Any, T], seconds: float = 60) -> T:
        """Run a coroutine on the stack's event loop: `stack.wait_for(stack.stack.emulator.settled())`."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)


@contextmanager
def background_stack(options: StackOptions) -> Iterator[BackgroundStack]:
    """Run a stack while the context is open."""
    runner = _Runner(options)
    runner.thread.start()
    try:
        yield runner.wait_until_started()
    finally:
        runner.end()


class _Runner:
    def __init__(self, options: StackOptions) -> None:
        self._options = options
        self._started = threading.Event()
        self._running: BackgroundStack | None = None
        self._over: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="local-stack", daemon=True)

    def wait_until_started(self) -> BackgroundStack:
        self._started.wait()
        if self._running is None:
            raise self._failure or RuntimeError("the stack did not start")
        return self._running

    def end(self) -> None:
        if self._running and self._over:
            self._running.loop.call_soon_threadsafe(self._over.set)
        self.thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # raised by `wait_until_started`
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        async with local_stack(self._options) as stack:
            self._over = asyncio.Event()
            self._running = BackgroundStack(stack, asyncio.get_running_loop())
            self._started.set()
            await self._over.wait()
