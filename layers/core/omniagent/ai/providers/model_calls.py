"""Model calls: the only functions that call a provider.

Each call is one LLM span, streamed or buffered.
"""

import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from omniagent.ai.providers.llm_provider import (
    LLMProvider,
    ModelEvent,
    ModelFinish,
    ModelReasoning,
    ModelReplaced,
    ModelRequest,
    ModelText,
    ModelToolCall,
    Purpose,
)
from omniagent.errors import ModelError
from omniagent.messages import FinishReason, Usage
from omniagent.tracing import Span, SpanKind, active_recorder, attributes, trace_operation
from omniagent.tracing.redaction import redact

_MAX_TRACED_CALLS = 20
"""A span keeps 128 attributes and then drops the oldest."""
_INLINE_REASONING = re.compile(r"^<think>.*?(?:</think>|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Completion:
    """A buffered answer: its text without surrounding white space, its usage and its finish reason."""

    text: str
    usage: Usage
    reason: FinishReason = "other"

    @property
    def usable_text(self) -> str:
        """The text without reasoning that the server left in it. Nothing if it is a refusal or was cut by a filter."""
        return "" if self.reason == "content-filter" else _INLINE_REASONING.sub("", self.text).strip()


def call_model(provider: LLMProvider, request: ModelRequest, *, purpose: Purpose) -> AsyncGenerator[ModelEvent, None]:
    """Call the model and return its events. Without tracing, this is the provider's own generator, not wrapped."""
    if request.purpose != purpose:
        request = replace(request, purpose=purpose)
    return provider.stream(request) if active_recorder() is None else _traced(provider, request)


async def complete(
    provider: LLMProvider, request: ModelRequest, *, purpose: Purpose, on_cut: Callable[[str], None] = lambda _: None
) -> Completion:
    """Call the model and return its complete answer. `on_cut` gets each text that a model began before it failed."""
    pieces: list[str] = []
    end = ModelFinish("other", Usage())
    try:
        async with aclosing(call_model(provider, request, purpose=purpose)) as events:
            async for event in events:
                if isinstance(event, ModelText):
                    pieces.append(event.text)
                elif isinstance(event, ModelReplaced) and pieces:
                    on_cut("".join(pieces))
                    pieces.clear()
                elif isinstance(event, ModelFinish):
                    end = event
    except ModelError:
        if pieces:
            on_cut("".join(pieces))
        raise
    return Completion("".join(pieces).strip(), end.usage, end.reason)


async def _traced(provider: LLMProvider, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
    """Stream inside an LLM span, which is current in the provider and never in the code that reads the events."""
    span = trace_operation("llm", kind=SpanKind.LLM, attributes=_request_attributes(provider, request))
    seen: list[ModelEvent] = []
    finish: ModelFinish | None = None
    api_text = ""
    if span.captures_content:
        messages = [message.model_dump(mode="json") for message in request.messages]
        span.set_content(input={"instructions": request.instructions, "messages": messages})
    source = provider.stream(request)
    try:
        while True:
            with span.resumed():
                event = await anext(source, None)
            if event is None:
                return
            if isinstance(event, ModelReplaced):
                seen.clear()
            elif span.captures_content:
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
            if finish is not None:
                span.set_many(_end_attributes(finish))
            span.end()


def _request_attributes(provider: LLMProvider, request: ModelRequest) -> dict[str, Any]:
    overrides = request.overrides
    limits = {"temperature": overrides.temperature, "max_output_tokens": overrides.max_output_tokens}
    chosen = {**overrides.extra, **limits}
    parameters = redact({name: value for name, value in chosen.items() if value is not None})
    return {
        attributes.LLM_SYSTEM: provider.system,
        attributes.LLM_MODEL_NAME: overrides.model or provider.model,
        attributes.LLM_PURPOSE: request.purpose,
        attributes.LLM_INVOCATION_PARAMETERS: json.dumps(parameters, default=str) if parameters else None,
    }


def _end_attributes(finish: ModelFinish) -> dict[str, Any]:
    usage = finish.usage
    return {
        attributes.LLM_FINISH_REASON: finish.reason,
        attributes.LLM_TOKEN_COUNT_PROMPT: usage.input_tokens,
        attributes.LLM_TOKEN_COUNT_COMPLETION: usage.output_tokens,
        attributes.LLM_TOKEN_COUNT_TOTAL: usage.total_tokens,
        attributes.LLM_TOKEN_COUNT_CACHE_READ: usage.cached_input_tokens,
        attributes.LLM_TOKEN_COUNT_CACHE_WRITE: usage.cache_write_tokens,
        attributes.LLM_TOKEN_COUNT_REASONING: usage.reasoning_tokens,
    }


def _record_output(span: Span, seen: Sequence[ModelEvent], api_text: str) -> None:
    """Record the answer received so far: plain text, or an object if there is more than text."""
    text = "".join(event.text for event in seen if isinstance(event, ModelText))
    calls = [event for event in seen if isinstance(event, ModelToolCall)]
    more = {
        "reasoning": "".join(event.text for event in seen if isinstance(event, ModelReasoning)),
        "tool_calls": [{"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in calls],
        "error": api_text,
    }
    present = {name: value for name, value in more.items() if value}
    span.set_content(output={"text": text, **present} if present else text or None)
    if not (text or calls):
        return
    message = f"{attributes.LLM_OUTPUT_MESSAGES}.0"
    said = {f"{message}.{attributes.MESSAGE_ROLE}": "assistant", f"{message}.{attributes.MESSAGE_CONTENT}": text}
    for number, call in enumerate(calls[:_MAX_TRACED_CALLS]):
        prefix = f"{message}.{attributes.MESSAGE_TOOL_CALLS}.{number}"
        said[f"{prefix}.{attributes.TOOL_CALL_ID}"] = call.call_id
        said[f"{prefix}.{attributes.TOOL_CALL_FUNCTION_NAME}"] = call.name
        said[f"{prefix}.{attributes.TOOL_CALL_FUNCTION_ARGUMENTS_JSON}"] = call.arguments
    span.set_many(said)
