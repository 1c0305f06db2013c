"""The stream for AI SDK 5. Its client fails on approval chunks, so it gets a data part and a tool error instead."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from omniagent.messages import DENIED_ERROR
from omniagent.protocol import events, sse

_UNKNOWN = (events.ToolApprovalRequest.type.encode(), events.ToolOutputDenied.type.encode())


async def for_ai_sdk5(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Replace the chunks that AI SDK 5 rejects. A request becomes `data-approval-request` with the same fields.

    Its client shows data where it arrives. So a request is held back until the step ends, or until other data arrives:
    then it follows the model's parts of its step, in a live stream, in a replay and in the stored messages.
    """
    requests: list[bytes] = []
    async for frames in stream:
        if not requests and not any(name in frames for name in _UNKNOWN):
            yield frames
        elif translated := b"".join(_translated(frames, requests)):
            yield translated


def _translated(frames: bytes, requests: list[bytes]) -> Iterator[bytes]:
    """Translate frames. `requests` are those that are held back."""
    for frame in frames.split(b"\n\n"):
        if frame:
            event: dict[str, Any] = next(sse.decode(frame), {})
            match event:
                case {"type": "tool-approval-request", "approvalId": str(request_id)}:
                    data = {name: value for name, value in event.items() if name not in ("type", "approved")}
                    requests.append(sse.encode(events.DataChunk("approval-request", data, request_id)))
                case {"type": "tool-output-denied", "toolCallId": str(call_id)}:
                    yield sse.encode(events.ToolOutputError(call_id, DENIED_ERROR))
                case _:
                    if _ends_model_parts(event):
                        yield from requests
                        requests.clear()
                    yield frame + b"\n\n"


def _ends_model_parts(event: dict[str, Any]) -> bool:
    kind = str(event.get("type"))
    return kind == events.FinishStep.type or (kind.startswith("data-") and not event.get("transient"))
