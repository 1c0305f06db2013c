"""A chain of models: if one fails, the next one answers."""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
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
from omniagent.messages import ChatMessage, ReasoningPart
from omniagent.tracing import attributes, current_span

logger = logging.getLogger(__name__)

SHORTEST_BREAK_SECONDS: Final = 15.0
LONGEST_BREAK_SECONDS: Final = 240.0
IN_A_CHAIN: Final = {"max_wait_seconds": 1.0}
"""Options of a provider that others can replace: a model that is throttled is not waited for."""


@dataclass(slots=True)
class Circuit:
    """Open while a model that failed is left alone. Each failure in a row doubles that time."""

    failures: int = 0
    open_until: float = 0.0

    def is_open(self, now: float) -> bool:
        return self.failures > 0 and now < self.open_until

    def trip(self, now: float) -> None:
        self.failures += 1
        self._break(now)

    def probe(self, now: float) -> None:
        """Let one call try a model that failed. Others leave it alone meanwhile."""
        if self.failures:
            self._break(now)

    def reset(self) -> None:
        self.failures = 0

    def _break(self, now: float) -> None:
        doubled = min(self.failures - 1, 10)
        self.open_until = now + min(SHORTEST_BREAK_SECONDS * 2**doubled, LONGEST_BREAK_SECONDS)


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
        self._circuits = [Circuit() for _ in providers]

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        failure: ModelError | None = None
        for position in self._order():
            provider, circuit = self.providers[position], self._circuits[position]
            if position or failure:
                _note(failure, provider)
                yield ModelReplaced(provider.model)
            circuit.probe(self._clock())
            try:
                async with aclosing(provider.stream(_own_request(request, position))) as events:
                    async for event in events:
                        yield _marked(event, position)
            except ModelError as exc:
                failure = exc
                if not isinstance(exc, ModelRejected) or exc.api_status == 404:  # the model is gone
                    circuit.trip(self._clock())
            else:
                circuit.reset()
                return
        if failure is not None:
            raise failure

    def _order(self) -> Iterator[int]:
        """Yield the positions to try: those with an open circuit last."""
        now = self._clock()
        waiting = {position for position, circuit in enumerate(self._circuits) if circuit.is_open(now)}
        yield from (position for position in range(len(self.providers)) if position not in waiting)
        yield from sorted(waiting)

    def context_window(self, overrides: Overrides) -> int | None:
        """Return the smallest of the chain: the same prompt goes to each."""
        sizes = (provider.context_window(_own_overrides(overrides, at)) for at, provider in enumerate(self.providers))
        return min((size for size in sizes if size is not None), default=None)

    def cached_price(self, overrides: Overrides) -> float:
        return self.providers[0].cached_price(overrides)

    async def aclose(self) -> None:
        for provider in self.providers:
            await provider.aclose()


def _note(failure: ModelError | None, provider: LLMProvider) -> None:
    cause = f"{type(failure).__name__}: {failure}" if failure else "failed before"
    logger.warning("model replaced by the next of its chain", extra={"cause": cause, "model": provider.model})
    current_span().set_many({attributes.LLM_SYSTEM: provider.system, attributes.LLM_MODEL_NAME: provider.model})


_POSITION = "chain_position"


def _marked(event: ModelEvent, position: int) -> ModelEvent:
    """Mark the data of a provider's reasoning with its position. Unmarked data is the first provider's."""
    if not position or not isinstance(event, ModelReasoningDone) or event.provider_data is None:
        return event
    return ModelReasoningDone({**event.provider_data, _POSITION: position})


def _own_request(request: ModelRequest, position: int) -> ModelRequest:
    """Return the request without what is meant for, or comes from, another provider of the chain."""
    messages = [_own(message, position) for message in request.messages]
    return replace(request, messages=messages, overrides=_own_overrides(request.overrides, position))


def _own_overrides(overrides: Overrides, position: int) -> Overrides:
    return replace(overrides, model=None, extra={}) if position else overrides


def _own(message: ChatMessage, position: int) -> ChatMessage:
    if not any(isinstance(part, ReasoningPart) for part in message.parts):
        return message
    parts = [_own_part(part, position) if isinstance(part, ReasoningPart) else part for part in message.parts]
    return message.model_copy(update={"parts": parts})


def _own_part(part: ReasoningPart, position: int) -> ReasoningPart:
    data = dict(part.provider_data or {})
    is_own = data.pop(_POSITION, 0) == position
    return part.model_copy(update={"provider_data": data if data and is_own else None})
