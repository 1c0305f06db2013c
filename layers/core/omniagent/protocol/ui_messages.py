"""Stored messages as the AI SDK's `UIMessage`, equal to those that its client builds from the live stream."""

from collections.abc import Iterator, Mapping, Sequence
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
from omniagent.protocol.events import DataChunk, source_event

DEFAULT_SDK = 6
"""The version of the AI SDK whose format all versions since 6 accept."""
SDK_VERSIONS: Final[Mapping[str | None, int]] = {"5": 5, "7": 7}
"""The other formats, by what a client sends in `x-ai-sdk`."""


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
                requests.append(_request_part(part.call_id, request))
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
    # AI SDK 5 has no approvals: its stream (`sdk_versions`) has a data part and an error instead.
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


def _request_part(call_id: str, request: CallRequest) -> dict[str, Any]:
    data = _present({"approvalId": request.id, "toolCallId": call_id, "reason": request.reason})
    return {"type": "data-approval-request", "id": request.id, "data": data}


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
