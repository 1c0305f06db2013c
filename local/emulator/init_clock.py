"""Measures how long a process takes to start, without the time that it waits for a processor."""

import asyncio
import time
from pathlib import Path


class InitClock:
    """Enforces the time limit of a starting process.

    Lambda's limit is for a process with its own processor. Here many processes share two, so the time that a process
    waits for one does not count, if the kernel reports it. `most_seconds` is the limit in any case.
    """

    def __init__(self, pid: int, seconds: float, most_seconds: float) -> None:
        """Start the clock."""
        self._pid = pid
        self._seconds = seconds
        self._most_seconds = most_seconds
        self._began = time.monotonic()
        self.limit = min(seconds, most_seconds)

    async def is_in_time(self, ready: asyncio.Future[None]) -> bool:
        """Wait for the process and return whether it was ready in time. If it failed, raise its error."""
        while not ready.done():
            left = min(self._seconds - self._own_seconds(), self._most_seconds - self._elapsed())
            if left <= 0:
                return False
            await asyncio.wait([ready], timeout=left)
        ready.result()
        return True

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _own_seconds(self) -> float:
        try:
            waited = int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError):  # not Linux, or the process has ended
            waited = 0.0
        return self._elapsed() - waited
