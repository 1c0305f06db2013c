"""The stream for AI SDK 6, which has no chunk for a decision on a tool call."""

from collections.abc import AsyncIterator

_REQUEST = b'data: {"type":"tool-approval-request"'
_APPROVED = b'"approved":true}'


async def undecided(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Leave out requests that were approved before the stream began.

    A client would keep such a request as an approval without `approved`, which its own schema refuses once the call has
    an output.
    """
    async for frames in stream:
        if _REQUEST not in frames:
            yield frames
            continue
        pieces = frames.split(b"\n\n")
        yield b"\n\n".join(each for each in pieces if not (each.startswith(_REQUEST) and each.endswith(_APPROVED)))
