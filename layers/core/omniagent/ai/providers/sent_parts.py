"""The parts of a conversation as the APIs take them."""

import json
import re
from collections.abc import Sequence
from typing import Any

from omniagent.messages import ChatMessage, Part, StepPart, ToolPart

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
MAX_TOOL_NAME_LENGTH = 64


def steps(message: ChatMessage) -> list[list[Part]]:
    """Split a message into its steps. Tool calls without a result are closed."""
    found: list[list[Part]] = [[]]
    for part in message.parts:
        if isinstance(part, StepPart):
            found.append([])
        else:
            found[-1].append(part.close() if isinstance(part, ToolPart) else part)
    return [step for step in found if step]


def with_system_first(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with the instructions of the turn before all others."""
    return sorted(messages, key=lambda message: message.role != "system")


def leading_system(messages: Sequence[ChatMessage]) -> str:
    """Return the instructions of the turn if they come first."""
    return messages[0].text if messages and messages[0].role == "system" else ""


def with_paragraph(text: str, more: str) -> str:
    return f"{text}\n\n{more}" if text and more else text or more


def system_follows_question(messages: Sequence[ChatMessage]) -> bool:
    """Whether the instructions of the turn follow a user's message: Claude takes them nowhere else."""
    at = next((index for index, message in enumerate(messages) if message.role == "system"), 0)
    return at > 0 and messages[at - 1].role == "user" and bool(messages[at - 1].text.strip())


def cached_questions(messages: Sequence[ChatMessage]) -> set[int]:
    """Return the positions of the messages that end a part of the prompt that the next turn repeats.

    An API that matches its cache only at marks needs two: one finds what the turn before has stored, one stores. If
    nothing follows the question that the next turn lacks, no mark is needed.
    """
    at = next((index for index, message in enumerate(messages) if message.role == "system"), 0)
    return set([index for index in range(at) if messages[index].role == "user"][-2:])


def tool_name(part: ToolPart) -> str:
    """Return a name that the APIs accept: a model may have called a tool with an invalid name."""
    return _NOT_IN_NAMES.sub("_", part.name)[:MAX_TOOL_NAME_LENGTH] or "unknown"


def tool_input(part: ToolPart) -> dict[str, Any]:
    """Return the arguments as an object, even if the model wrote none."""
    if part.input is None:
        return {}
    return part.input if isinstance(part.input, dict) else {"unparsed": part.input}


def tool_arguments(part: ToolPart) -> str:
    """Return the arguments as the JSON of an object: some servers parse them."""
    return to_json(tool_input(part))


def tool_output(part: ToolPart) -> str:
    if part.error is not None:
        return part.error
    return part.output if isinstance(part.output, str) else to_json(part.output)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
