"""The one boundary through which the package calls a model: each call is one LLM span, streamed or buffered."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from omniagent.ai.providers.llm_provider import (
    LLMProvider,
    ModelEvent,
    ModelFinish,
    ModelReasoning,
    ModelRequest,
    ModelText,
    ModelToolCall,
    Purpose,
)
from omniagent.errors import ModelError, ModelUnavailable
from omniagent.messages import FinishReason, Usage
from omniagent.tracing import Span, SpanKind, attributes, output_message, token_counts, trace_operation
from omniagent.tracing.redaction import redact
from omniagent.tracing.spans import active_recorder


@dataclass(frozen=True, slots=True)
class Completion:
    """A buffered answer: its text without surrounding white space, and what it cost."""

    text: str
    usage: Usage
    reason: FinishReason = "other"


def call_model(provider: LLMProvider, request: ModelRequest, *, purpose: Purpose) -> AsyncGenerator[ModelEvent, None]:
    """Call the model and return its events. Without tracing that is the provider's own generator: no frame more."""
    if request.purpose != purpose:
        request = replace(request, purpose=purpose)
    return provider.stream(request) if active_recorder() is None else _traced(provider, request)


async def complete(
    provider: LLMProvider, request: ModelRequest, *, purpose: Purpose, timeout_seconds: float | None = None
) -> Completion:
    """Call the model and return its answer once it is complete, which may take `timeout_seconds` at most."""
    pieces: list[str] = []
    end = ModelFinish("other", Usage())
    try:
        async with (
            asyncio.timeout(timeout_seconds) as limit,
            aclosing(call_model(provider, request, purpose=purpose)) as events,
        ):
            async for event in events:
                if isinstance(event, ModelText):
                    pieces.append(event.text)
                elif isinstance(event, ModelFinish):
                    end = event
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise ModelUnavailable(f"no complete {purpose} within {timeout_seconds:g} seconds") from exc
    return Completion("".join(pieces).strip(), end.usage, end.reason)


async def _traced(provider: LLMProvider, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
    """Stream inside an LLM span, which is current in the provider and never in the code that reads the events."""
    span = trace_operation("llm", kind=SpanKind.LLM, attributes=_request_attributes(provider, request))
    seen: list[ModelEvent] = []
    finish: ModelFinish | None = None
    api_text = ""
    if span.captures_content:
        span.set_content(input=_input(request))
    source = provider.stream(request)
    try:
        while True:
            with span.resumed():
                event = await anext(source, None)
            if event is None:
                return
            if span.captures_content:
                seen.append(event)
            if isinstance(event, ModelFinish):
                finish = event
            yield event
    except BaseException as exc:
        if not (finish and isinstance(exc, GeneratorExit)):  # a reader may leave after the last event
            span.error(exc)
        api_text = exc.api_text if isinstance(exc, ModelError) else ""
        raise
    finally:
        try:
            with span.resumed():
                await source.aclose()
        finally:
            if span.captures_content:
                _record_output(span, seen, api_text)
            _record_end(span, finish)
            span.end()


def _request_attributes(provider: LLMProvider, request: ModelRequest) -> dict[str, Any]:
    overrides = request.overrides
    options = {
        **overrides.extra,
        "temperature": overrides.temperature,
        "max_output_tokens": overrides.max_output_tokens,
    }
    parameters = redact({name: value for name, value in options.items() if value is not None})
    return {
        attributes.LLM_SYSTEM: provider.system,
        attributes.LLM_MODEL_NAME: provider.model_for(request.overrides),
        attributes.LLM_PURPOSE: request.purpose,
        attributes.LLM_INVOCATION_PARAMETERS: json.dumps(parameters, default=str) if parameters else None,
    }


def _input(request: ModelRequest) -> dict[str, Any]:
    return {
        "instructions": request.instructions,
        "messages": [message.model_dump(mode="json") for message in request.messages],
    }


def _record_end(span: Span, finish: ModelFinish | None) -> None:
    if finish is None:
        return
    usage = finish.usage
    span.set(attributes.LLM_FINISH_REASON, finish.reason)
    span.set_many(
        token_counts(
            prompt=usage.input_tokens,
            completion=usage.output_tokens,
            total=usage.total_tokens,
            cache_read=usage.cached_input_tokens,
            reasoning=usage.reasoning_tokens,
        )
    )


def _record_output(span: Span, seen: Sequence[ModelEvent], api_text: str) -> None:
    """Record the answer as far as it came: plain text, or an object where there is more than text."""
    text = "".join(event.text for event in seen if isinstance(event, ModelText))
    calls = [event for event in seen if isinstance(event, ModelToolCall)]
    more = {
        "reasoning": "".join(event.text for event in seen if isinstance(event, ModelReasoning)),
        "tool_calls": [{"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in calls],
        "error": api_text,
    }
    present = {name: value for name, value in more.items() if value}
    span.set_content(output={"text": text, **present} if present else text or None)
    if text or calls:
        span.set_many(output_message(text, ((call.call_id, call.name, call.arguments) for call in calls)))
