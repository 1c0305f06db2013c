"""The attributes of an LLM span, flattened as OpenInference asks."""

from collections.abc import Iterable, Mapping
from typing import Any

from .attributes import (
    LLM_TOKEN_COUNT_CACHE_READ,
    LLM_TOKEN_COUNT_COMPLETION,
    LLM_TOKEN_COUNT_PROMPT,
    LLM_TOKEN_COUNT_REASONING,
    LLM_TOKEN_COUNT_TOTAL,
    MESSAGE_CONTENT,
    MESSAGE_ROLE,
    MESSAGE_TOOL_CALL_ID,
    MESSAGE_TOOL_CALLS,
    TOOL_CALL_FUNCTION_ARGUMENTS_JSON,
    TOOL_CALL_FUNCTION_NAME,
    TOOL_CALL_ID,
)


def token_counts(
    *,
    prompt: int | None,
    completion: int | None,
    total: int | None = None,
    cache_read: int | None = None,
    reasoning: int | None = None,
) -> Mapping[str, int]:
    """Return the usage attributes of an LLM span. Unknown counts are left out."""
    if total is None and prompt is not None and completion is not None:
        total = prompt + completion
    counts = {
        LLM_TOKEN_COUNT_PROMPT: prompt,
        LLM_TOKEN_COUNT_COMPLETION: completion,
        LLM_TOKEN_COUNT_TOTAL: total,
        LLM_TOKEN_COUNT_CACHE_READ: cache_read,
        LLM_TOKEN_COUNT_REASONING: reasoning,
    }
    return {name: count for name, count in counts.items() if count is not None}


def message_attributes(
    messages: str,
    index: int,
    *,
    role: str,
    text: str | None = None,
    tool_calls: Iterable[tuple[str, str, str]] = (),
    tool_call_id: str | None = None,
) -> Mapping[str, Any]:
    """Return the attributes of one message. All of them are content.

    `messages` is LLM_INPUT_MESSAGES or LLM_OUTPUT_MESSAGES, `index` the message's place in that list. A tool call is
    its id, the tool's name and the arguments as JSON text; `tool_call_id` is the call that a tool's message answers.
    """
    attributes: dict[str, Any] = {
        MESSAGE_ROLE: role,
        MESSAGE_CONTENT: text,
        MESSAGE_TOOL_CALL_ID: tool_call_id,
    }
    for number, (call_id, name, arguments) in enumerate(tool_calls):
        call = f"{MESSAGE_TOOL_CALLS}.{number}"
        attributes |= {
            f"{call}.{TOOL_CALL_ID}": call_id,
            f"{call}.{TOOL_CALL_FUNCTION_NAME}": name,
            f"{call}.{TOOL_CALL_FUNCTION_ARGUMENTS_JSON}": arguments,
        }
    return {f"{messages}.{index}.{name}": value for name, value in attributes.items() if value is not None}
