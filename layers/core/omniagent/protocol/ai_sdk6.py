"""The stream for AI SDK 6, which has no chunk for a decision on a tool call."""

_REQUEST = b'data: {"type":"tool-approval-request"'
_APPROVED = b'"approved":true}'


def undecided(frames: bytes) -> bytes:
    """Return the frames without requests that were approved before the stream began.

    A client would keep such a request as an approval without `approved`, which its own schema refuses once the call has
    an output.
    """
    if _REQUEST not in frames:
        return frames
    return b"\n\n".join(
        frame for frame in frames.split(b"\n\n") if not (frame.startswith(_REQUEST) and frame.endswith(_APPROVED))
    )
