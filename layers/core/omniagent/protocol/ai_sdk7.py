"""The stream for version 7 of the AI SDK's client, which has a chunk of its own for a steering message.

Loaded only for a client that says so: every other fails on a chunk that it does not know.
"""

import json
from collections.abc import AsyncIterator

from omniagent.protocol import sse
from omniagent.protocol.ui_messages import steering_message

_STEERING = b'data: {"type":"data-steering"'


class AiSdk7Stream:
    """An answer whose steering messages are sent as `steering-message`."""

    def __init__(self, stream: sse.FrameStream) -> None:
        self.session_id = stream.session_id
        self._stream = stream

    async def sse(self) -> AsyncIterator[bytes]:
        async for frames in self._stream.sse():
            yield _translated(frames) if _STEERING in frames else frames

    async def ended(self) -> None:
        await self._stream.ended()


def _translated(frames: bytes) -> bytes:
    pieces = frames.split(b"\n\n")
    for index, piece in enumerate(pieces):
        if piece.startswith(_STEERING):
            [event] = sse.decode(piece)
            message = steering_message(event["id"], event["data"]["text"])
            pieces[index] = b"data: " + json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    return b"\n\n".join(pieces)
