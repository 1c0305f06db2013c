"""The attribute names are the published ones."""

import inspect

import pytest
from openinference.semconv.trace import (
    AnnotationAttributes,
    MessageAttributes,
    OpenInferenceSpanKindValues,
    SpanAttributes,
    ToolCallAttributes,
)
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import db_attributes, error_attributes, exception_attributes, http_attributes

from omniagent.tracing import SpanKind, attributes, output_message, token_counts, trace_operation

from .conftest import Recorded

OPEN_INFERENCE = {
    "SPAN_KIND": SpanAttributes.OPENINFERENCE_SPAN_KIND,
    "LLM_TOKEN_COUNT_CACHE_READ": SpanAttributes.LLM_TOKEN_COUNT_PROMPT_DETAILS_CACHE_READ,
    "LLM_TOKEN_COUNT_CACHE_WRITE": SpanAttributes.LLM_TOKEN_COUNT_PROMPT_DETAILS_CACHE_WRITE,
    "LLM_TOKEN_COUNT_REASONING": SpanAttributes.LLM_TOKEN_COUNT_COMPLETION_DETAILS_REASONING,
    **{
        name: value
        for published in (AnnotationAttributes, MessageAttributes, ToolCallAttributes, SpanAttributes)
        for name, value in vars(published).items()
        if name.isupper()
    },
}
OPEN_TELEMETRY = {
    "DB_SYSTEM": db_attributes.DB_SYSTEM_NAME,
    "DB_OPERATION": db_attributes.DB_OPERATION_NAME,
    "DB_COLLECTION": db_attributes.DB_COLLECTION_NAME,
    "HTTP_STATUS": http_attributes.HTTP_RESPONSE_STATUS_CODE,
    "ERROR_TYPE": error_attributes.ERROR_TYPE,
    "EXCEPTION_TYPE": exception_attributes.EXCEPTION_TYPE,
    "EXCEPTION_MESSAGE": exception_attributes.EXCEPTION_MESSAGE,
    "GEN_AI_EVALUATION_RESULT": "gen_ai.evaluation.result",  # an event; Python's package lists attributes only
    **{name: value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")},
    "EXCEPTION_STACKTRACE": exception_attributes.EXCEPTION_STACKTRACE,
}
OURS = [
    (name, value)
    for name, value in inspect.getmembers(attributes)
    if name.isupper() and isinstance(value, str) and not value.startswith("omniagent.")
]


@pytest.mark.parametrize(("name", "value"), OURS)
def test_every_attribute_name_is_the_published_one(name: str, value: str) -> None:
    assert value == {**OPEN_INFERENCE, **OPEN_TELEMETRY}[name]


def test_every_kind_but_the_database_is_an_open_inference_kind() -> None:
    published = {kind.value for kind in OpenInferenceSpanKindValues}
    assert {kind.value for kind in SpanKind} - published == {SpanKind.DB}


def test_token_counts_leave_out_what_the_provider_did_not_report() -> None:
    assert token_counts(prompt=10, completion=5) == {
        "llm.token_count.prompt": 10,
        "llm.token_count.completion": 5,
        "llm.token_count.total": 15,
    }
    assert token_counts(prompt=None, completion=None) == {}


def test_an_answer_is_flattened_as_open_inference_asks() -> None:
    answer = output_message("One moment", [("c1", "weather", "{}")])
    assert answer == {
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "One moment",
        "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c1",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "weather",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": "{}",
    }
    assert all(name.startswith(attributes.CONTENT_PREFIXES) for name in answer)


def test_many_tool_calls_do_not_push_other_attributes_out_of_the_span(recorded_with_content: Recorded) -> None:
    with trace_operation("llm", kind=SpanKind.LLM) as span:
        span.set_many(output_message("", [(str(number), "weather", "{}") for number in range(100)]))
    assert recorded_with_content.attributes("llm")["openinference.span.kind"] == "LLM"
