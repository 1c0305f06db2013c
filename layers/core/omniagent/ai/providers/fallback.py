"""A chain of models: if one is unavailable, the next is called."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from omniagent.ai.providers.llm_provider import (
    LLMProvider,
    ModelEvent,
    ModelReasoningDone,
    ModelRequest,
    check_provider,
)
from omniagent.errors import ConfigurationError, ModelUnavailable
from omniagent.messages import ChatMessage, ReasoningPart
from omniagent.tracing import attributes, current_span

logger = logging.getLogger(__name__)


class FallbackProvider(LLMProvider):
    """Calls the first provider, and the next one if it is unavailable before its first event.

    After the first event the answer is being paid for, so a failure is raised as it is. A call's `overrides.model` and
    `overrides.extra` apply to the first provider only; the others use their own model. The data of reasoning is sent
    back only to the provider that it came from: no other can read it.
    """

    def __init__(self, providers: Sequence[LLMProvider]) -> None:
        if not providers:
            raise ConfigurationError("A chain of models needs at least one")
        for provider in providers:
            check_provider("FallbackProvider: each", provider)
        super().__init__(providers[0].model)
        self.providers = tuple(providers)
        self.system = providers[0].system

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        for position, provider in enumerate(self.providers):
            is_last = position == len(self.providers) - 1
            started = False
            try:
                async with aclosing(provider.stream(_with_own_data(request, position))) as events:
                    async for event in events:
                        started = True
                        yield _marked(event, position)
            except ModelUnavailable as exc:
                if started or is_last:
                    raise
                _note(exc, self.providers[position + 1])
                request = replace(request, overrides=replace(request.overrides, model=None, extra={}))
            else:
                return

    async def aclose(self) -> None:
        for provider in self.providers:
            await provider.aclose()


def _note(failure: ModelUnavailable, provider: LLMProvider) -> None:
    logger.warning("model unavailable, asking the next", extra={"cause": str(failure), "model": provider.model})
    current_span().set_many({attributes.LLM_SYSTEM: provider.system, attributes.LLM_MODEL_NAME: provider.model})


_POSITION = "chain_position"


def _marked(event: ModelEvent, position: int) -> ModelEvent:
    """Mark the data of a provider's reasoning with its position. Unmarked data is the first provider's."""
    if not position or not isinstance(event, ModelReasoningDone) or event.provider_data is None:
        return event
    return ModelReasoningDone({**event.provider_data, _POSITION: position})


def _with_own_data(request: ModelRequest, position: int) -> ModelRequest:
    return replace(request, messages=[_own(message, position) for message in request.messages])


def _own(message: ChatMessage, position: int) -> ChatMessage:
    if not any(isinstance(part, ReasoningPart) for part in message.parts):
        return message
    parts = [_own_part(part, position) if isinstance(part, ReasoningPart) else part for part in message.parts]
    return message.model_copy(update={"parts": parts})


def _own_part(part: ReasoningPart, position: int) -> ReasoningPart:
    data = dict(part.provider_data or {})
    is_own = data.pop(_POSITION, 0) == position
    return part.model_copy(update={"provider_data": data if data and is_own else None})
