"""Stored messages and live streams in the format of each version of the AI SDK, whose client fails on what it does not
know. A stored message equals the one that the client builds from the live stream.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from omniagent.errors import ToolError
from omniagent.messages import (
    DENIED_ERROR,
    CallRequest,
    DataPart,
    Part,
    ReasoningPart,
    Role,
    SourcePart,
    SteeringPart,
    StepPart,
    TextPart,
    ToolPart,
)
from omniagent.protocol import sse
from omniagent.protocol.events import DataChunk, ToolOutputError, source_event

DEFAULT_SDK = 6
"""The version of the AI SDK whose format all versions since 6 accept."""
SDK_VERSIONS: Final[Mapping[str | None, int]] = {"5": 5, "7": 7}
"""The other formats, by what a client sends in `x-ai-sdk`."""
_REQUEST = b'data: {"type":"tool-approval-request"'
_DENIED = b'data: {"type":"tool-output-denied"'
_STEERING = b'data: {"type":"data-steering"'
_DECISION = b'data: {"type":"data-approval-response"'
_FINISH_STEP = b'data: {"type":"finish-step"'
_ANY_DATA = b'data: {"type":"data-'


def ui_message(
    message_id: str, role: Role, parts: Sequence[Part], metadata: Mapping[str, Any], *, sdk: int = DEFAULT_SDK
) -> dict[str, Any]:
    """Return a message in the format of `useChat`, of this version of the AI SDK."""
    # A user's message was never streamed, so its text has no state.
    state = {} if role == "user" else {"state": "done"}
    message: dict[str, Any] = {"id": message_id, "role": role, "parts": list(_ui_parts(parts, state, sdk))}
    return message | ({"metadata": dict(metadata)} if metadata else {})


def _ui_parts(  # noqa: C901 - one case a kind
    parts: Sequence[Part], state: dict[str, str], sdk: int
) -> Iterator[dict[str, Any]]:
    block = 0  # the stream numbers blocks of text and reasoning; the client keeps the numbers of reasoning
    requests: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, StepPart | DataPart | SteeringPart):
            yield from requests
            requests.clear()
        match part:
            case StepPart():
                yield {"type": "step-start"}
            case TextPart():
                block += 1
                yield {"type": "text", "text": part.text, **state}
            case ReasoningPart(text=""):
                pass  # hidden reasoning: stored for the model, never shown
            case ReasoningPart():
                yield {"type": "reasoning", "id": str(block), "text": part.text, "state": "done"}
                block += 1
            case ToolPart(request=CallRequest(kind="approval") as request) if sdk < DEFAULT_SDK:
                yield _tool_part(part, sdk)
                data = _present({"approvalId": request.id, "toolCallId": part.call_id, "reason": request.reason})
                requests.append({"type": "data-approval-request", "id": request.id, "data": data})
            case ToolPart():
                yield _tool_part(part, sdk)
            case SteeringPart() if sdk > DEFAULT_SDK:
                yield steering_message(part.message_id, part.text)
            case SteeringPart():
                yield {"type": "data-steering", "id": part.message_id, "data": {"text": part.text}}
            case SourcePart():
                yield sse.to_wire(source_event(part))
            case DataPart():
                yield sse.to_wire(DataChunk(part.name, part.data, part.id or None))
    yield from requests


def steering_message(message_id: str, text: str) -> dict[str, Any]:
    """Return a steering message in AI SDK 7's format, the same in a stream and in a message."""
    return {"type": "steering-message", "id": message_id, "parts": [{"type": "text", "text": text}]}


def _tool_part(part: ToolPart, sdk: int) -> dict[str, Any]:
    call: dict[str, Any] = {"type": f"tool-{part.name}", "toolCallId": part.call_id}
    # A string is what the model wrote instead of JSON: clients before AI SDK 7 keep it apart from a tool's input.
    is_raw = isinstance(part.input, str) and sdk <= DEFAULT_SDK
    call["rawInput" if is_raw else "input"] = part.input
    # AI SDK 5 has no approvals: its stream has a data part and an error instead.
    request = part.request
    approval = request if request is not None and request.kind == "approval" and sdk >= DEFAULT_SDK else None
    if approval is not None:
        # `requestReason` is AI SDK 7's; others ignore it.
        verdict = {"approved": approval.approved, "reason": approval.comment, "requestReason": approval.reason}
        call["approval"] = {"id": approval.id, **_present(verdict)}
    if request is not None and not part.done:
        if approval is None:
            return call | {"state": "input-available"}
        return call | {"state": "approval-requested" if approval.approved is None else "approval-responded"}
    part = part.close()
    if part.is_denied:
        error = {"state": "output-error", "errorText": DENIED_ERROR}
        return call | ({"state": "output-denied"} if sdk >= DEFAULT_SDK else error)
    if part.error is None:
        return call | {"state": "output-available", "output": part.output}
    return call | {"state": "output-error", "errorText": part.public_error or ToolError.public}


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


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
        held.append(sse.encode(DataChunk("approval-request", data, data["approvalId"])))
    elif frame.startswith(_DENIED):
        yield sse.encode(ToolOutputError(_event(frame)["toolCallId"], DENIED_ERROR))
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
