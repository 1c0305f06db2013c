"""The stream for AI SDK 7, which has its own chunks for steering messages and for decisions on tool calls.

Used only for clients that name this version: others fail on unknown chunks.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from omniagent.protocol import sse
from omniagent.protocol.ui_messages import steering_message

_STEERING = b'data: {"type":"data-steering"'
_DECISION = b'data: {"type":"data-approval-response"'


async def for_ai_sdk7(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Send steering messages as `steering-message`, and decisions as `tool-approval-response`."""
    async for frames in stream:
        yield _translated(frames) if _STEERING in frames or _DECISION in frames else frames


def _translated(frames: bytes) -> bytes:
    pieces = frames.split(b"\n\n")
    for index, piece in enumerate(pieces):
        if piece.startswith((_STEERING, _DECISION)):
            [event] = sse.decode(piece)
            pieces[index] = b"data: " + json.dumps(_chunk(event), ensure_ascii=False, separators=(",", ":")).encode()
    return b"\n\n".join(pieces)


def _chunk(event: dict[str, Any]) -> dict[str, Any]:
    if event["type"] == "data-steering":
        return steering_message(event["id"], event["data"]["text"])
    verdict = {name: value for name, value in event["data"].items() if name != "toolCallId"}
    return {"type": "tool-approval-response"} | verdict
