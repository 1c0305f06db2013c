"""Stored messages as the AI SDK's `UIMessage`: what its client would have built from the live stream."""

from collections.abc import Mapping, Sequence
from typing import Any

from omniagent.errors import ToolError
from omniagent.messages import Part, ReasoningPart, Role, StepPart, TextPart, ToolPart


def ui_message(message_id: str, role: Role, parts: Sequence[Part], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message that `useChat` takes as it is."""
    shown = [part for part in map(_user_part if role == "user" else _answer_part, parts) if part is not None]
    message: dict[str, Any] = {"id": message_id, "role": role, "parts": shown}
    return message | ({"metadata": dict(metadata)} if metadata else {})


def _user_part(part: Part) -> dict[str, Any] | None:
    """The client wrote these itself: they never streamed and have no state."""
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else None


def _answer_part(part: Part) -> dict[str, Any] | None:
    match part:
        case StepPart():
            return {"type": "step-start"}
        case TextPart():
            return {"type": "text", "text": part.text, "state": "done"}
        case ReasoningPart():
            # Reasoning that the model keeps to itself is stored for the model and was never shown.
            return {"type": "reasoning", "text": part.text, "state": "done"} if part.text else None
        case ToolPart():
            return _tool_part(part.close())


def _tool_part(part: ToolPart) -> dict[str, Any]:
    call: dict[str, Any] = {"type": f"tool-{part.name}", "toolCallId": part.call_id}
    # Text is what the model wrote instead of JSON: the client keeps it apart from a tool's input.
    call |= {"rawInput": part.input} if isinstance(part.input, str) else {"input": part.input}
    if part.error is None:
        return call | {"state": "output-available", "output": part.output}
    return call | {"state": "output-error", "errorText": part.public_error or ToolError.public}
