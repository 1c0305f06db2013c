"""A conversation as the APIs take it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from omniagent.ai.providers.llm_provider import ModelRequest
from omniagent.messages import Part, StepPart, ToolPart

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


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A text of the user, instructions of the turn, or the steps of an answer."""

    role: Literal["user", "system", "assistant"]
    text: str
    steps: list[list[SentPart]]
    in_turn: bool
    """Whether it belongs to the running turn: reasoning of earlier ones is not sent back."""
    is_marked: bool
    """Whether it ends a part of the prompt that the next turn repeats."""


def sent_messages(request: ModelRequest) -> Iterator[SentMessage]:
    """Yield the messages of a request, without empty texts, and without instructions that come first.

    Answers are split into their steps, and tool calls without a result are closed.

    An API that matches its cache only at marks needs two: one finds what the turn before has stored, one stores. If
    nothing follows the question that the next turn lacks, no mark is needed.
    """
    messages = request.messages
    questions = [number for number, message in enumerate(messages) if message.role == "user"]
    turn_start = questions[-1] if questions else 0
    late = next((number for number, message in enumerate(messages) if message.role == "system"), 0)
    marked = [number for number in questions if number < late][-2:]
    for number, message in enumerate(messages):
        in_turn = number > turn_start
        if message.role == "assistant":
            steps: list[list[SentPart]] = [[]]
            for part in message.parts:
                if isinstance(part, StepPart):
                    steps.append([])
                else:
                    steps[-1].append(_sent_call(part.close()) if isinstance(part, ToolPart) else part)
            yield SentMessage("assistant", "", [step for step in steps if step], in_turn, is_marked=False)
        elif message.text and (number or message.role == "user"):
            yield SentMessage(message.role, message.text, [], in_turn, number in marked)


def _sent_call(part: ToolPart) -> SentCall:
    """Return a call under a name that the APIs accept: a model may have called a tool with an invalid one."""
    name = _NOT_IN_NAMES.sub("_", part.name)[:MAX_TOOL_NAME_LENGTH] or "unknown"
    arguments = part.input if isinstance(part.input, dict) else {} if part.input is None else {"unparsed": part.input}
    result = part.output if part.error is None else part.error
    output = result if isinstance(result, str) else to_json(result)
    return SentCall(part.call_id, name, arguments, output, part.error is not None)


def instructions_of(request: ModelRequest) -> tuple[str, str]:
    """Return the instructions of the agent, and those of the turn if they come first."""
    first = request.messages[0] if request.messages else None
    return request.instructions, first.text if first is not None and first.role == "system" else ""


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
