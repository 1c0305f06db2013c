"""Server-sent events: the one place where an event becomes bytes, and bytes become events again."""

import json
from collections.abc import Iterator
from json.encoder import encode_basestring as quote
from typing import Any

from omniagent.protocol.events import ReasoningDelta, StreamEvent, TextDelta, from_wire, to_wire

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
}

_DATA = "data: "
_END = "\n\n"
_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def encode(event: StreamEvent) -> bytes:
    """Return the event as one frame."""
    kind = type(event)
    if kind is TextDelta or kind is ReasoningDelta:
        # Nearly every frame is a delta: formatting it by hand costs a quarter of the general way below.
        text = f'data: {{"type":"{event.type}","id":{quote(event.id)},"delta":{quote(event.delta)}}}\n\n'  # type: ignore[attr-defined]
    else:
        text = _DATA + _encode_json(to_wire(event)) + _END
    return text.encode("utf-8", "replace")


def decode(frames: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of each whole frame; comments and `[DONE]` carry none."""
    for frame in frames.split(b"\n\n"):
        if frame.startswith(b"data: {"):
            yield json.loads(frame[len(_DATA) :])


def decode_events(frames: bytes) -> Iterator[StreamEvent]:
    """Yield the typed event of each whole frame."""
    return (from_wire(wire) for wire in decode(frames))
