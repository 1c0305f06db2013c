"""The attributes of an LLM span, flattened as OpenInference requires."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from .attributes import (
    LLM_OUTPUT_MESSAGES,
    LLM_TOKEN_COUNT_CACHE_READ,
    LLM_TOKEN_COUNT_CACHE_WRITE,
    LLM_TOKEN_COUNT_COMPLETION,
    LLM_TOKEN_COUNT_PROMPT,
    LLM_TOKEN_COUNT_REASONING,
    LLM_TOKEN_COUNT_TOTAL,
    MESSAGE_CONTENT,
    MESSAGE_ROLE,
    MESSAGE_TOOL_CALLS,
    TOOL_CALL_FUNCTION_ARGUMENTS_JSON,
    TOOL_CALL_FUNCTION_NAME,
    TOOL_CALL_ID,
)

_MAX_TOOL_CALLS: Final = 20


def token_counts(
    *,
    prompt: int | None,
    completion: int | None,
    total: int | None = None,
    cache_read: int | None = None,
    cache_write: int | None = None,
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
        LLM_TOKEN_COUNT_CACHE_WRITE: cache_write,
        LLM_TOKEN_COUNT_REASONING: reasoning,
    }
    return {name: count for name, count in counts.items() if count is not None}


def output_message(text: str, tool_calls: Iterable[tuple[str, str, str]] = ()) -> Mapping[str, str]:
    """Return the attributes of the model's answer: its text and, per tool call, id, name and arguments as JSON.

    All of them are content. A span keeps 128 attributes and then drops the oldest, so the number of calls is limited.
    """
    message = f"{LLM_OUTPUT_MESSAGES}.0"
    attributes = {f"{message}.{MESSAGE_ROLE}": "assistant", f"{message}.{MESSAGE_CONTENT}": text}
    for number, (call_id, name, arguments) in enumerate(islice(tool_calls, _MAX_TOOL_CALLS)):
        call = f"{message}.{MESSAGE_TOOL_CALLS}.{number}"
        attributes |= {
            f"{call}.{TOOL_CALL_ID}": call_id,
            f"{call}.{TOOL_CALL_FUNCTION_NAME}": name,
            f"{call}.{TOOL_CALL_FUNCTION_ARGUMENTS_JSON}": arguments,
        }
    return attributes
