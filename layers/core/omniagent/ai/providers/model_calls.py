"""The one boundary through which the package calls a model: each call is one LLM span, streamed or buffered."""

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
from omniagent.errors import ModelError
from omniagent.messages import FinishReason, Usage
from omniagent.tracing import Span, SpanKind, attributes, token_counts, trace_operation
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


async def complete(provider: LLMProvider, request: ModelRequest, *, purpose: Purpose) -> Completion:
    """Call the model and return its answer once it is complete."""
    pieces: list[str] = []
    end = ModelFinish("other", Usage())
    async with aclosing(call_model(provider, request, purpose=purpose)) as events:
        async for event in events:
            if isinstance(event, ModelText):
                pieces.append(event.text)
            elif isinstance(event, ModelFinish):
                end = event
    return Completion("".join(pieces).strip(), end.usage, end.reason)


async def _traced(provider: LLMProvider, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
    """Stream inside an LLM span, which is current in the provider and never in the code that reads the events."""
    span = trace_operation("llm", kind=SpanKind.LLM, attributes=_request_attributes(provider, request))
    seen: list[ModelEvent] = []
    finish: ModelFinish | None = None
    api_text = ""
    if span.is_recording:
        span.set_content(input=_input(request))
    source = provider.stream(request)
    try:
        while True:
            with span.resumed():
                event = await anext(source, None)
            if event is None:
                return
            if span.is_recording:
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
            _record_end(span, _output(seen, api_text), finish)
            span.end()


def _request_attributes(provider: LLMProvider, request: ModelRequest) -> dict[str, Any]:
    return {
        attributes.LLM_SYSTEM: provider.system,
        attributes.LLM_MODEL_NAME: provider.model_for(request.overrides),
        attributes.LLM_PURPOSE: request.purpose,
    }


def _input(request: ModelRequest) -> dict[str, Any]:
    return {
        "instructions": request.instructions,
        "messages": [message.model_dump(mode="json") for message in request.messages],
    }


def _record_end(span: Span, output: str | dict[str, Any], finish: ModelFinish | None) -> None:
    if output:
        span.set_content(output=output)
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


def _output(seen: Sequence[ModelEvent], api_text: str) -> str | dict[str, Any]:
    """The answer as far as it came: plain text, or an object where there is more than text."""
    text = "".join(event.text for event in seen if isinstance(event, ModelText))
    more = {
        "reasoning": "".join(event.text for event in seen if isinstance(event, ModelReasoning)),
        "tool_calls": [
            {"id": event.call_id, "name": event.name, "arguments": event.arguments}
            for event in seen
            if isinstance(event, ModelToolCall)
        ],
        "error": api_text,
    }
    present = {name: value for name, value in more.items() if value}
    return {"text": text, **present} if present else text
