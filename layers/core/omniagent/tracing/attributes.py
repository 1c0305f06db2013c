"""Span kinds and attribute names: those of OpenInference, and of OpenTelemetry for databases, HTTP and errors.

They are repeated here so that the layer does not ship the packages of semantic conventions. A test compares each with
the published constant.
"""

from enum import StrEnum
from typing import Final

SPAN_KIND: Final = "openinference.span.kind"
INPUT_VALUE: Final = "input.value"
INPUT_MIME_TYPE: Final = "input.mime_type"
OUTPUT_VALUE: Final = "output.value"
OUTPUT_MIME_TYPE: Final = "output.mime_type"
SESSION_ID: Final = "session.id"
USER_ID: Final = "user.id"
AGENT_NAME: Final = "agent.name"
LLM_SYSTEM: Final = "llm.system"
LLM_MODEL_NAME: Final = "llm.model_name"
LLM_FINISH_REASON: Final = "llm.finish_reason"
LLM_INVOCATION_PARAMETERS: Final = "llm.invocation_parameters"
LLM_OUTPUT_MESSAGES: Final = "llm.output_messages"
MESSAGE_ROLE: Final = "message.role"
MESSAGE_CONTENT: Final = "message.content"
MESSAGE_TOOL_CALLS: Final = "message.tool_calls"
TOOL_CALL_ID: Final = "tool_call.id"
TOOL_CALL_FUNCTION_NAME: Final = "tool_call.function.name"
TOOL_CALL_FUNCTION_ARGUMENTS_JSON: Final = "tool_call.function.arguments"
LLM_TOKEN_COUNT_PROMPT: Final = "llm.token_count.prompt"  # noqa: S105 - an attribute's name, not a secret
LLM_TOKEN_COUNT_COMPLETION: Final = "llm.token_count.completion"  # noqa: S105
LLM_TOKEN_COUNT_TOTAL: Final = "llm.token_count.total"  # noqa: S105
LLM_TOKEN_COUNT_CACHE_READ: Final = "llm.token_count.prompt_details.cache_read"  # noqa: S105
LLM_TOKEN_COUNT_CACHE_WRITE: Final = "llm.token_count.prompt_details.cache_write"  # noqa: S105
LLM_TOKEN_COUNT_REASONING: Final = "llm.token_count.completion_details.reasoning"  # noqa: S105
TOOL_NAME: Final = "tool.name"
TOOL_ID: Final = "tool.id"
TOOL_WAITS_FOR: Final = "omniagent.tool_waits_for"

DB_SYSTEM: Final = "db.system.name"
DB_OPERATION: Final = "db.operation.name"
DB_COLLECTION: Final = "db.collection.name"
HTTP_STATUS: Final = "http.response.status_code"
ERROR_TYPE: Final = "error.type"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

# Feedback on an answer: OpenInference's annotation of a trace, and OpenTelemetry's event of an evaluation.
ANNOTATION: Final = "trace.annotations.0.annotation"
EVALUATION: Final = "gen_ai.evaluation"
RESPONSE_ID: Final = "gen_ai.response.id"

TURN_NUMBER: Final = "omniagent.turn_number"
LLM_PURPOSE: Final = "omniagent.purpose"
TURN_STATUS: Final = "omniagent.turn_status"
FINISH_REASON: Final = "omniagent.finish_reason"
STOP_REASON: Final = "omniagent.stop_reason"
USER_CATEGORY: Final = "omniagent.user_category"
CANCELLED: Final = "omniagent.cancelled"
STATE_CHANGE: Final = "omniagent.state_change"
STATE_NAME: Final = "omniagent.state.name"
STATE_BEFORE: Final = "omniagent.state.before"
STATE_AFTER: Final = "omniagent.state.after"

BOUND_ATTRIBUTES: Final = {
    "session_id": SESSION_ID,
    "user_id": USER_ID,
    "user_category": USER_CATEGORY,
    "turn": TURN_NUMBER,
}
"""The attributes that every span has of the fields that are bound where it starts."""

# Attributes with text of users, models and tools. They are recorded only while content capture is on.
CONTENT_PREFIXES: Final = (
    "input.",
    "output.",
    "tool.parameters",
    "llm.input_messages",
    LLM_OUTPUT_MESSAGES,
    "llm.prompts",
    "llm.choices",
    f"{ANNOTATION}.explanation",
    f"{EVALUATION}.explanation",
)


class SpanKind(StrEnum):
    """The kind of operation that a span describes.

    OpenInference has no kind for a plain database call (its RETRIEVER is a search for knowledge). A DB span therefore
    has no OpenInference kind: it is an OpenTelemetry client span with `db.*` attributes.
    """

    AGENT = "AGENT"
    CHAIN = "CHAIN"
    LLM = "LLM"
    TOOL = "TOOL"
    DB = "DB"
