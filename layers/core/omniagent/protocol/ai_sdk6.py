"""The stream for AI SDK 6, which has no chunk for a decision on a tool call."""

from collections.abc import AsyncIterator

from omniagent.protocol import sse

_REQUEST = b'data: {"type":"tool-approval-request"'
_APPROVED = b'"approved":true}'


class AiSdk6Stream:
    """A stream without requests that were approved before it began.

    A client would keep such a request as an approval without `approved`, which its own schema refuses once the call has
    an output.
    """

    def __init__(self, stream: sse.FrameStream) -> None:
        self.session_id = stream.session_id
        self._stream = stream

    async def sse(self) -> AsyncIterator[bytes]:
        async for frames in self._stream.sse():
            yield _undecided(frames) if _REQUEST in frames else frames

    async def ended(self) -> None:
        await self._stream.ended()


def _undecided(frames: bytes) -> bytes:
    return b"\n\n".join(
        frame for frame in frames.split(b"\n\n") if not (frame.startswith(_REQUEST) and frame.endswith(_APPROVED))
    )
