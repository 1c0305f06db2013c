"""What both OpenAI APIs want to read of a stored message."""

import json
import re
from typing import Any

from omniagent.messages import ChatMessage, Part, StepPart, ToolPart

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
MAX_TOOL_NAME_LENGTH = 64


def steps(message: ChatMessage) -> list[list[Part]]:
    """Cut a message where a model call began. Every tool call has a result."""
    found: list[list[Part]] = [[]]
    for part in message.parts:
        if isinstance(part, StepPart):
            found.append([])
        else:
            found[-1].append(part.close() if isinstance(part, ToolPart) else part)
    return [step for step in found if step]


def tool_name(part: ToolPart) -> str:
    """A name the APIs accept: a model may have called a tool that cannot exist."""
    return _NOT_IN_NAMES.sub("_", part.name)[:MAX_TOOL_NAME_LENGTH] or "unknown"


def tool_arguments(part: ToolPart) -> str:
    """A JSON object, even when the model wrote none: some servers parse what they are given back."""
    if part.input is None:
        return "{}"
    return to_json(part.input if isinstance(part.input, dict) else {"unparsed": part.input})


def tool_output(part: ToolPart) -> str:
    if part.error is not None:
        return part.error
    return part.output if isinstance(part.output, str) else to_json(part.output)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
