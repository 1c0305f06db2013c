"""Follows a turn that another process runs, through its chunk log."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from omniagent.messages import FinishReason
from omniagent.protocol import events, sse
from omniagent.turns.event_log import KEEP_ALIVE_SECONDS
from omniagent.turns.lease import Claim, TurnRegistry
from omniagent.turns.recorder import replay

INTERRUPTED: FinishReason = "other"


async def follow(
    registry: TurnRegistry, claim: Claim, *, poll_seconds: float, on_death: Callable[[], Awaitable[object]]
) -> AsyncIterator[bytes]:
    """Yield the turn's frames from its first event to its end. One that never began yields nothing.

    When its process dies, `on_death` repairs the session, and the stream is ended as the turn could not.
    """
    sent: list[bytes] = []
    number = -1
    idle = 0.0
    alive = True
    while True:
        chunks = await registry.read(claim.session, claim.turn_id, number)
        for _, frames in chunks:
            sent.append(frames)
            yield frames
        if chunks:
            number = chunks[-1][0]
        if sent and sent[-1].endswith(sse.DONE):
            return
        if not alive:
            break
        if not chunks:
            running = await registry.running(claim.session)
            # The last chunk is written before the release: a turn that is gone gets one more read.
            alive = running is not None and running.alive and running.claim.turn_id == claim.turn_id
            idle += poll_seconds
        if idle >= KEEP_ALIVE_SECONDS:
            idle = 0.0
            yield sse.KEEP_ALIVE
        if alive:
            await asyncio.sleep(poll_seconds)
    if sent:
        await on_death()
        yield _ending(b"".join(sent))


def _ending(sent: bytes) -> bytes:
    closing: list[events.StreamEvent] = []
    replay(sent, closing.append).close()
    closing += [events.Abort("interrupted"), events.Finish(INTERRUPTED, {"status": "interrupted"})]
    return b"".join(sse.encode(event) for event in closing) + sse.DONE
