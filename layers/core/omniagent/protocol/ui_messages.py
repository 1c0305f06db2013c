"""Stored messages as the AI SDK's `UIMessage`, equal to those that its client builds from the live stream."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
from omniagent.protocol.events import source_event

DEFAULT_SDK = 6
"""The version of the AI SDK whose format all versions since 6 accept."""


def sdk_version(header: str | None) -> int:
    """Return the version of the AI SDK that a client names in `x-ai-sdk`: 5, 6 (the default) or 7."""
    return {"5": 5, "7": 7}.get((header or "").strip(), DEFAULT_SDK)


def ui_message(
    message_id: str, role: Role, parts: Sequence[Part], metadata: Mapping[str, Any], *, sdk: int = DEFAULT_SDK
) -> dict[str, Any]:
    """Return a message in the format of `useChat`, of this version of the AI SDK."""
    ui_parts = _user_parts(parts) if role == "user" else _answer_parts(parts, sdk)
    message: dict[str, Any] = {"id": message_id, "role": role, "parts": list(ui_parts)}
    return message | ({"metadata": dict(metadata)} if metadata else {})


def _user_parts(parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a user's message. They were never streamed, so they have no state."""
    for part in parts:
        if isinstance(part, TextPart):
            yield {"type": "text", "text": part.text}
        elif isinstance(part, DataPart):
            yield _data_part(part)


def _data_part(part: DataPart) -> dict[str, Any]:
    return {"type": f"data-{part.name}", "data": part.data} | ({"id": part.id} if part.id else {})


def _answer_parts(parts: Sequence[Part], sdk: int) -> Iterator[dict[str, Any]]:
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
                yield {"type": "text", "text": part.text, "state": "done"}
            case ReasoningPart(text=""):
                pass  # hidden reasoning: stored for the model, never shown
            case ReasoningPart():
                yield {"type": "reasoning", "id": str(block), "text": part.text, "state": "done"}
                block += 1
            case ToolPart(request=CallRequest(kind="approval") as request) if sdk < DEFAULT_SDK:
                yield _unapproved_part(part, sdk)
                requests.append(_request_part(part.call_id, request))
            case ToolPart():
                yield _tool_part(part, sdk)
            case SteeringPart():
                yield _steering_part(part, sdk)
            case SourcePart():
                yield sse.to_wire(source_event(part))
            case DataPart():
                yield _data_part(part)
    yield from requests


def steering_message(message_id: str, text: str) -> dict[str, Any]:
    """Return a steering message in AI SDK 7's format, the same in a stream and in a message."""
    return {"type": "steering-message", "id": message_id, "parts": [{"type": "text", "text": text}]}


def _steering_part(part: SteeringPart, sdk: int) -> dict[str, Any]:
    if sdk > DEFAULT_SDK:
        return steering_message(part.message_id, part.text)
    return {"type": "data-steering", "id": part.message_id, "data": {"text": part.text}}


def _tool_part(part: ToolPart, sdk: int) -> dict[str, Any]:
    call: dict[str, Any] = {"type": f"tool-{part.name}", "toolCallId": part.call_id}
    # A string is what the model wrote instead of JSON: clients before AI SDK 7 keep it apart from a tool's input.
    is_raw = isinstance(part.input, str) and sdk <= DEFAULT_SDK
    call["rawInput" if is_raw else "input"] = part.input
    if part.request is not None:
        call |= _approval(part.request)
        if not part.done:
            return call | {"state": _open_state(part.request)}
    part = part.close()
    if part.is_denied:
        return call | {"state": "output-denied"}
    if part.error is None:
        return call | {"state": "output-available", "output": part.output}
    return call | {"state": "output-error", "errorText": part.public_error or ToolError.public}


def _unapproved_part(part: ToolPart, sdk: int) -> dict[str, Any]:
    """Return a call as AI SDK 5 knows it from its stream (`ai_sdk5`): it has no approvals."""
    call = {name: value for name, value in _tool_part(part, sdk).items() if name != "approval"}
    if call["state"] == "output-denied":
        call |= {"state": "output-error", "errorText": DENIED_ERROR}
    elif not part.done:
        call["state"] = "input-available"
    return call


def _request_part(call_id: str, request: CallRequest) -> dict[str, Any]:
    data = {"approvalId": request.id, "toolCallId": call_id, "reason": request.reason}
    present = {name: value for name, value in data.items() if value is not None}
    return {"type": "data-approval-request", "id": request.id, "data": present}


def _approval(request: CallRequest) -> dict[str, Any]:
    """Return an approval request in the client's format. `requestReason` is AI SDK 7's; others ignore it."""
    if request.kind == "output":
        return {}
    verdict = {"approved": request.approved, "reason": request.comment, "requestReason": request.reason}
    return {"approval": {"id": request.id} | {name: value for name, value in verdict.items() if value is not None}}


def _open_state(request: CallRequest) -> str:
    if request.kind == "output":
        return "input-available"
    return "approval-requested" if request.approved is None else "approval-responded"
