"""The stream for each version of the AI SDK: a client fails on chunks that its version does not know."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from omniagent.messages import DENIED_ERROR
from omniagent.protocol import events, sse
from omniagent.protocol.ui_messages import DEFAULT_SDK, steering_message

_REQUEST = b'data: {"type":"tool-approval-request"'
_DENIED = b'data: {"type":"tool-output-denied"'
_STEERING = b'data: {"type":"data-steering"'
_DECISION = b'data: {"type":"data-approval-response"'
_FINISH_STEP = b'data: {"type":"finish-step"'
_ANY_DATA = b'data: {"type":"data-'


def for_sdk(stream: AsyncIterator[bytes], sdk: int) -> AsyncIterator[bytes]:
    """Translate a stream for a client of this version."""
    if sdk == DEFAULT_SDK:
        return sse.translated(stream, _without_decided)
    return sse.translated(stream, partial(_for_5, []) if sdk < DEFAULT_SDK else _for_7)


def _for_5(held: list[bytes], frame: bytes) -> Iterator[bytes]:
    """Version 5 has no approvals. A request becomes `data-approval-request` with the same fields, a denial an error.

    Its client shows data where it arrives. So a request is `held` back until the step ends, or until other data
    arrives: then it follows the model's parts of its step, in a live stream, in a replay and in the stored messages.
    """
    if frame.startswith(_REQUEST):
        data = {name: value for name, value in _event(frame).items() if name not in ("type", "approved")}
        held.append(sse.encode(events.DataChunk("approval-request", data, data["approvalId"])))
    elif frame.startswith(_DENIED):
        yield sse.encode(events.ToolOutputError(_event(frame)["toolCallId"], DENIED_ERROR))
    else:
        if frame.startswith(_FINISH_STEP) or (frame.startswith(_ANY_DATA) and not _event(frame).get("transient")):
            yield from held
            held.clear()
        yield frame


def _without_decided(frame: bytes) -> Iterator[bytes]:
    """Version 6 has no chunk for a decision: leave out requests that were approved before the stream began.

    Its client would keep such a request as an approval without `approved`, which its own schema refuses once the call
    has an output.
    """
    if not (frame.startswith(_REQUEST) and _event(frame).get("approved")):
        yield frame


def _for_7(frame: bytes) -> Iterator[bytes]:
    """Version 7 has its own chunks for steering messages and for decisions on tool calls."""
    if frame.startswith(_STEERING):
        event = _event(frame)
        yield sse.frame(steering_message(event["id"], event["data"]["text"]))
    elif frame.startswith(_DECISION):
        verdict = {name: value for name, value in _event(frame)["data"].items() if name != "toolCallId"}
        yield sse.frame({"type": "tool-approval-response"} | verdict)
    else:
        yield frame


def _event(frame: bytes) -> dict[str, Any]:
    return next(sse.decode(frame))
