"""The events of a streamed HTTP answer, in the groups in which they arrive."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

from omniagent.ai.providers.api_errors import aws_exception, short_code, translated_transport
from omniagent.ai.providers.stream_reader import EventDecoder, Json
from omniagent.errors import ModelError, ModelStreamBroken
from omniagent.network import peer_timeout

DRAIN_SECONDS = 0.1


async def read_events(
    chunks: AsyncIterator[bytes],
    close: Callable[[], Awaitable[None]],
    *,
    content_type: str | None,
    first_byte_by: float,
) -> AsyncGenerator[Iterator[Json], None]:
    """Yield the events of a body as they arrive."""
    decoder = EventDecoder()
    async with aclosing(_arrivals(chunks, close, first_byte_by)) as arrivals:
        async for data in arrivals:
            yield decoder.feed(data)
            if decoder.done:
                await drain(arrivals)
    rest = list(decoder.feed(b"", last=True))
    for event in rest:
        if failure := aws_exception(event):  # absent routes of Bedrock send one with the status 200
            raise failure
    yield iter(rest)
    if not decoder.has_events and not decoder.done:
        kind = short_code((content_type or "none").partition(";")[0])
        raise ModelStreamBroken(f"the model's API sent no events (content type {kind}): is its address right?")


async def _arrivals(
    chunks: AsyncIterator[bytes],
    close: Callable[[], Awaitable[None]],
    first_byte_by: float,
) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives, one piece per read of the network.

    The transport returns the HTTP chunks of a read one by one and does not say whether the next one has arrived. A
    task collects them while its reader waits for the next iteration of the event loop: 5,000 chunks become 20 pieces
    (measured, at full speed). The length of an answer limits what is buffered here.
    """
    pieces: list[bytes] = []
    arrived = asyncio.Event()

    async def pump() -> None:
        try:
            async with peer_timeout(first_byte_by) as peer_spoke:
                async for chunk in chunks:
                    if not pieces:
                        peer_spoke()  # from here on the transport's own read timeout applies
                    pieces.append(chunk)
                    arrived.set()
        finally:
            arrived.set()

    pumping = asyncio.create_task(pump(), name="model-stream")
    try:
        while pieces or not pumping.done():
            if pieces:
                data = b"".join(pieces)
                pieces.clear()
                yield data
            else:
                await arrived.wait()
                arrived.clear()
        with translated_transport():
            await pumping
    finally:
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)
        await close()


async def drain(answer: AsyncGenerator[Any, None]) -> None:
    """Read the rest of a complete answer, so that its connection can be used for the next request."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in answer:
                pass
    except (TimeoutError, ModelError):
        return
