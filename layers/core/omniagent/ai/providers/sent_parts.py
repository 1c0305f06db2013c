"""The parts of a conversation as the APIs take them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omniagent.ai.providers.llm_provider import ModelRequest
from omniagent.messages import ChatMessage, Part, StepPart, ToolPart

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
MAX_TOOL_NAME_LENGTH = 64


@dataclass(frozen=True, slots=True)
class SentCall:
    """A tool call with its result. Its arguments are an object even if the model wrote none: servers parse them."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    output: str
    is_error: bool


SentPart = Part | SentCall


def steps(message: ChatMessage) -> list[list[SentPart]]:
    """Split a message into its steps. Tool calls without a result are closed."""
    found: list[list[SentPart]] = [[]]
    for part in message.parts:
        if isinstance(part, StepPart):
            found.append([])
        else:
            found[-1].append(_sent_call(part.close()) if isinstance(part, ToolPart) else part)
    return [step for step in found if step]


def _sent_call(part: ToolPart) -> SentCall:
    arguments = part.input if isinstance(part.input, dict) else {} if part.input is None else {"unparsed": part.input}
    result = part.output if part.error is None else part.error
    output = result if isinstance(result, str) else to_json(result)
    return SentCall(part.call_id, tool_name(part), arguments, output, part.error is not None)


def system_at(messages: Sequence[ChatMessage]) -> int:
    """Return the position of the turn's instructions, or -1."""
    return next((index for index, message in enumerate(messages) if message.role == "system"), -1)


def split_system(request: ModelRequest) -> tuple[str, str]:
    """Return the instructions of the agent, and those of the turn if they come first."""
    return request.instructions, request.messages[0].text if system_at(request.messages) == 0 else ""


def cached_questions(messages: Sequence[ChatMessage]) -> set[int]:
    """Return the positions of the messages that end a part of the prompt that the next turn repeats.

    An API that matches its cache only at marks needs two: one finds what the turn before has stored, one stores. If
    nothing follows the question that the next turn lacks, no mark is needed.
    """
    return set([index for index in range(system_at(messages)) if messages[index].role == "user"][-2:])


def tool_name(part: ToolPart) -> str:
    """Return a name that the APIs accept: a model may have called a tool with an invalid name."""
    return _NOT_IN_NAMES.sub("_", part.name)[:MAX_TOOL_NAME_LENGTH] or "unknown"


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
