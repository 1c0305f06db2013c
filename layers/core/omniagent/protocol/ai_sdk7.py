"""The stream for AI SDK 7, which has its own chunks for steering messages and for decisions on tool calls.

Used only for clients that name this version: others fail on unknown chunks.
"""

import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

from omniagent.protocol import sse
from omniagent.protocol.ui_messages import steering_message

_STEERING = b'data: {"type":"data-steering"'
_DECISION = b'data: {"type":"data-approval-response"'


class ResettingStream(sse.FrameStream, Protocol):
    """A stream that withdraws a step with `reset-step` if its reader knows that chunk."""

    def sse(self, *, resets: bool = False) -> AsyncIterator[bytes]: ...


class AiSdk7Stream:
    """An answer whose steering messages are sent as `steering-message`, decisions as `tool-approval-response`, and the
    withdrawal of a step as `reset-step`.
    """

    def __init__(self, stream: ResettingStream) -> None:
        self.session_id = stream.session_id
        self._stream = stream

    async def sse(self) -> AsyncIterator[bytes]:
        async for frames in self._stream.sse(resets=True):
            yield _translated(frames) if _STEERING in frames or _DECISION in frames else frames

    async def ended(self) -> None:
        await self._stream.ended()


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
