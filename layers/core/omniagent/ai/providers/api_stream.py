"""The events of a streamed HTTP answer: its bytes, parsed in the groups in which they arrive."""

import asyncio
import json
import re
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from io import IncrementalNewlineDecoder
from typing import Any, Final

from omniagent.ai.providers.api_errors import aws_exception, short_code, translated_transport
from omniagent.ai.providers.llm_provider import Json
from omniagent.errors import ModelStreamBroken
from omniagent.network import peer_timeout

MAX_EVENT_BYTES = 16 * 1024 * 1024
DONE_EVENT: Final[Json] = {"type": "[DONE]"}
"""The event of the `[DONE]` that ends some streams. Known by identity."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# A delta of Anthropic's API: its beginning, and a text that may be joined with the next. Spaces hide how long it is.
_DELTA = re.compile(
    r'(?:event: ?content_block_delta\n)?data: ?(\{"type": ?"content_block_delta", ?"index": ?\d+, ?'
    r'"delta": ?\{"type": ?"\w+", ?"\w+": ?")([^"\\]*(?:\\[^u][^"\\]*)*)" *\} *\} *'
)


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
            async with peer_timeout(first_byte_by):
                pieces.append(await anext(chunks, b""))
            arrived.set()
            async for chunk in chunks:  # from here on the transport's own read timeout applies
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


class EventDecoder:
    """Splits a stream into events and parses each once.

    `done` is set by the `[DONE]` that ends some streams, `has_events` by the first event.
    """

    def __init__(self) -> None:
        self.done = False
        self.has_events = False
        self._decoder = IncrementalNewlineDecoder(getincrementaldecoder("utf-8-sig")("replace"), translate=True)
        self._rest = ""

    def feed(self, chunk: bytes, *, last: bool = False) -> Iterator[Json]:
        """Yield the events that the chunk completes. Parsing is lazy: events before a malformed one are still read.

        The last one ends an event without its blank line, or a body that is one JSON object. Deltas that differ only in
        their text become one: parsing each costs more than the rest.
        """
        text = self._rest + self._decoder.decode(chunk, final=last)
        complete, _, self._rest = (text, "", "") if last else text.rpartition("\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ModelStreamBroken(f"an event of the model's stream is longer than {MAX_EVENT_BYTES} bytes")
        if last and not self.has_events and text.lstrip().startswith("{"):
            complete = "data: " + text.replace("\n", " ")
        start, texts = "", list[str]()
        for frame in complete.split("\n\n"):
            delta = _DELTA.fullmatch(frame)
            beginning, text = delta.groups() if delta is not None else ("", "")
            if beginning != start:
                if texts:
                    yield _joined(start, texts)
                start, texts = beginning, []
            if beginning:
                self.has_events = True
                texts.append(text)
                continue
            line = frame.partition("\n")[2] if frame.startswith("event:") else frame
            if line.startswith("data:") and "\n" not in line:
                payload = line[5:]
            else:
                payload = "\n".join(each[5:] for each in frame.split("\n") if each.startswith("data:"))
            if payload.strip() == "[DONE]":
                self.done = True
                yield DONE_EVENT
            if self.done:
                return
            if payload and not payload.isspace():
                self.has_events = True
                yield parse_object(payload)
        if texts:
            yield _joined(start, texts)


def _joined(start: str, texts: list[str]) -> Json:
    return parse_object(f'{start}{"".join(texts)}"}}}}')


def parse_object(text: str) -> Json:
    """Parse a JSON object of the API. A lone surrogate, which can be neither stored nor streamed, becomes U+FFFD."""
    try:
        value = json.loads(text)
        if "\\u" in text and _ESCAPED_SURROGATE.search(text):
            value = _without_surrogates(value)
    except (ValueError, RecursionError) as exc:
        raise ModelStreamBroken("the model's API sent something that is not JSON") from exc
    if not isinstance(value, dict):
        raise ModelStreamBroken(f"the model's API sent a JSON {type(value).__name__} instead of an object")
    return value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
