"""A chain of models: if one fails, the next one answers."""

import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from omniagent.ai.providers.llm_provider import (
    LLMProvider,
    ModelEvent,
    ModelReasoningDone,
    ModelReplaced,
    ModelRequest,
    Overrides,
    check_provider,
)
from omniagent.errors import ConfigurationError, ModelError, ModelRejected
from omniagent.messages import Part, ReasoningPart
from omniagent.tracing import attributes, current_span

logger = logging.getLogger(__name__)

SHORTEST_BREAK_SECONDS: Final = 15.0
LONGEST_BREAK_SECONDS: Final = 240.0
IN_A_CHAIN: Final = {"max_wait_seconds": 1.0}
"""Options of a provider that others can replace: a model that is throttled is not waited for."""


class FallbackProvider(LLMProvider):
    """Calls the first provider that has not just failed, and the next one if it fails.

    `ModelReplaced` comes before the events of any other provider than the first: what had been yielded is withdrawn.
    After a failure a provider is called only if all others fail, for 15 seconds or longer. If all fail, the last
    failure is raised. A request that a model rejects is given to the next one as well, but says nothing about the
    model. A call's `overrides.model` and `overrides.extra` apply to the first provider only; the others use their own
    model. The data of reasoning is sent back only to the provider that it came from: no other can read it.
    """

    def __init__(self, providers: Sequence[LLMProvider], *, clock: Callable[[], float] = time.monotonic) -> None:
        if not providers:
            raise ConfigurationError("A chain of models needs at least one")
        for provider in providers:
            check_provider("FallbackProvider: each", provider)
        super().__init__(providers[0].model)
        self.providers = tuple(providers)
        self.system = providers[0].system
        self._clock = clock
        self._failures = [0] * len(self.providers)
        """Of each provider, in a row."""
        self._open_until = [-math.inf] * len(self.providers)
        """Until when each circuit is open."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        failure: ModelError | None = None
        now = self._clock()
        # Those with an open circuit come last.
        for position in sorted(range(len(self.providers)), key=lambda at: now < self._open_until[at]):
            provider = self.providers[position]
            if position or failure:
                cause = f"{type(failure).__name__}: {failure}" if failure else "failed before"
                logger.warning(
                    "model replaced by the next of its chain", extra={"cause": cause, "model": provider.model}
                )
                names = {attributes.LLM_SYSTEM: provider.system, attributes.LLM_MODEL_NAME: provider.model}
                current_span().set_many(names)
                yield ModelReplaced(provider.model)
            self._leave_alone(position)  # one call at a time may try a model that failed
            try:
                async with aclosing(provider.stream(_own_request(request, position))) as events:
                    async for event in events:
                        yield _marked(event, position)
            except ModelError as exc:
                failure = exc
                if not isinstance(exc, ModelRejected) or exc.api_status == 404:  # the model is gone
                    self._failures[position] += 1
                    self._leave_alone(position)
            else:
                self._failures[position], self._open_until[position] = 0, -math.inf
                return
        if failure is not None:
            raise failure

    def _leave_alone(self, position: int) -> None:
        """Leave a model that failed alone. Each failure in a row doubles that time."""
        if failures := self._failures[position]:
            seconds = SHORTEST_BREAK_SECONDS * 2 ** min(failures - 1, 10)
            self._open_until[position] = self._clock() + min(seconds, LONGEST_BREAK_SECONDS)

    def context_window(self, overrides: Overrides) -> int | None:
        """Return the smallest of the chain: the same prompt goes to each."""
        sizes = (provider.context_window(_own_overrides(overrides, at)) for at, provider in enumerate(self.providers))
        return min((size for size in sizes if size is not None), default=None)

    def cached_price(self, overrides: Overrides) -> float:
        return self.providers[0].cached_price(overrides)

    async def aclose(self) -> None:
        for provider in self.providers:
            await provider.aclose()


_POSITION = "chain_position"


def _marked(event: ModelEvent, position: int) -> ModelEvent:
    """Mark the data of a provider's reasoning with its position. Unmarked data is the first provider's."""
    if not position or not isinstance(event, ModelReasoningDone) or event.provider_data is None:
        return event
    return ModelReasoningDone({**event.provider_data, _POSITION: position})


def _own_request(request: ModelRequest, position: int) -> ModelRequest:
    """Return the request without what is meant for, or comes from, another provider of the chain."""
    messages = [
        message.model_copy(update={"parts": [_own_part(part, position) for part in message.parts]})
        for message in request.messages
    ]
    return replace(request, messages=messages, overrides=_own_overrides(request.overrides, position))


def _own_overrides(overrides: Overrides, position: int) -> Overrides:
    return replace(overrides, model=None, extra={}) if position else overrides


def _own_part(part: Part, position: int) -> Part:
    if not isinstance(part, ReasoningPart):
        return part
    data = dict(part.provider_data or {})
    is_own = data.pop(_POSITION, 0) == position
    return part.model_copy(update={"provider_data": data if data and is_own else None})
