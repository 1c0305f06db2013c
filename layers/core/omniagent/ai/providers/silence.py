"""How long a model's server may be silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

LATE_SECONDS: Final = 0.1
"""A timer that is later than this shows that the event loop was blocked, or its process got no CPU."""
HELD_UP_SECONDS: Final = 1.0
"""How long a process that was held up looks whether its peer has answered meanwhile."""


@asynccontextmanager
async def peer_timeout(when: float) -> AsyncIterator[None]:
    """`asyncio.timeout_at` for the silence of a peer: what has arrived while this process did not run is no silence.

    A timeout that fires late is extended once, so that the loop can read what is in its sockets. `asyncio.timeout`
    would cancel the reader, which is behind it in the same round of the loop.
    """
    loop = asyncio.get_running_loop()

    def expire() -> None:
        now = loop.time()
        timeout.reschedule(now + HELD_UP_SECONDS if now - when > LATE_SECONDS else now)

    async with asyncio.timeout(None) as timeout:
        timer = loop.call_at(when, expire)
        try:
            yield
        finally:
            timer.cancel()
