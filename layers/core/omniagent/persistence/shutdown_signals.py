"""Signal handlers that end the running turns in an orderly way before the process ends."""

import asyncio
import signal
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from omniagent.session.manager import OpenTurns

Handler = Callable[[int, FrameType | None], Any] | int | None


class ShutdownSignals:
    """Wraps the handlers of signals, and restores them."""

    def __init__(self) -> None:
        self._previous: dict[int, Handler] = {}
        self._installed: dict[int, Handler] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def watch(self, turns: OpenTurns, signals: Iterable[int]) -> None:
        loop = asyncio.get_running_loop()
        for number in signals:
            if number in self._previous:
                continue
            previous: Handler = signal.getsignal(number)

            def handle(number: int, frame: FrameType | None, previous: Handler = previous) -> None:
                loop.call_soon_threadsafe(self._end, turns, number, previous)
                if callable(previous):
                    previous(number, frame)

            signal.signal(number, handle)
            self._previous[number], self._installed[number] = previous, handle

    def restore(self) -> None:
        """Restore the previous handlers, except where ours has been replaced since."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) is self._installed[number]:
                signal.signal(number, previous)
        self._previous.clear()
        self._installed.clear()

    def _end(self, turns: OpenTurns, number: int, previous: Handler) -> None:
        turns.shut_down()
        if previous == signal.SIG_DFL:
            # The default would kill the process now, so it is applied after the answers are stored.
            task = asyncio.get_running_loop().create_task(self._end_process(turns, number))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end_process(self, turns: OpenTurns, number: int) -> None:
        try:
            await turns.finish()
        finally:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
