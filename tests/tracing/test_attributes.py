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

from omniagent.tracing import SpanKind, attributes

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
    "RESPONSE_ID": gen_ai_attributes.GEN_AI_RESPONSE_ID,
    "EVALUATION": gen_ai_attributes.GEN_AI_EVALUATION_NAME.removesuffix(".name"),
    "ANNOTATION": f"{SpanAttributes.TRACE_ANNOTATIONS}.0.annotation",
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
