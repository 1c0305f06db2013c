"""The time that a process takes to start, as a machine of its own would measure it."""

import asyncio
import time
from pathlib import Path


class InitClock:
    """Gives a starting process its time.

    Lambda's limit is for a process with a processor of its own. Here many share two, so what the process waits for a
    processor does not count, where the kernel tells it. `most_seconds` is the end in any case.
    """

    def __init__(self, pid: int, seconds: float, most_seconds: float) -> None:
        """Start the clock."""
        self._pid = pid
        self._seconds = seconds
        self._most_seconds = most_seconds
        self._began = time.monotonic()
        self.limit = min(seconds, most_seconds)

    async def is_in_time(self, ready: asyncio.Future[None]) -> bool:
        """Wait for the process, and tell whether it was ready in time. What it failed with is raised."""
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
