"""`trace_method`: a span around every call of a function, method or async generator."""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeVar

from . import spans
from .attributes import DB_OPERATION, DB_SYSTEM, SpanKind

F = TypeVar("F", bound=Callable[..., Any])


def trace_method(
    *,
    kind: SpanKind | str = SpanKind.CHAIN,
    name: str | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Callable[[F], F]:
    """Open a span with these attributes around each call. `current_span()` returns it inside the function.

    A DB span named `<system>.<operation>`, such as `mongodb.begin_turn`, also gets both as `db.*` attributes.

    Sync functions, async functions and async generators can be decorated. The span of a generator lasts from its
    first step to its last. It is current inside the generator and never in the code that iterates it.
    """
    kind = SpanKind(kind)

    def decorate(function: F) -> F:
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"{function.__qualname__}: trace_method does not support sync generators")
        if inspect.isasyncgenfunction(function):
            wrap = _wrap_generator
        elif inspect.iscoroutinefunction(function):
            wrap = _wrap_coroutine
        else:
            wrap = _wrap_function
        span_name = name or function.__qualname__
        wrapped: F = wrap(function, span_name, kind, {**_implied(kind, span_name), **(attributes or {})})
        return wrapped

    return decorate


def _implied(kind: SpanKind, name: str) -> dict[str, str]:
    system, _, operation = name.rpartition(".")
    return {DB_SYSTEM: system, DB_OPERATION: operation} if kind is SpanKind.DB and system else {}


def _wrap_function(function: Callable[..., Any], name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with spans.trace_operation(name, kind=kind, attributes=attributes):
            return function(*args, **kwargs)

    return call


def _wrap_coroutine(function: Callable[..., Any], name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> Any:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with spans.trace_operation(name, kind=kind, attributes=attributes):
            return await function(*args, **kwargs)

    return call


def _wrap_generator(
    function: Callable[..., AsyncGenerator[Any, None]], name: str, kind: SpanKind, attributes: Mapping[str, Any]
) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        source = function(*args, **kwargs)
        # While tracing is off the caller gets the generator itself, without an extra frame per item.
        return source if spans.active_recorder() is None else _stepped(source, name, kind, attributes)

    return call


async def _stepped(
    source: AsyncGenerator[Any, None], name: str, kind: SpanKind, attributes: Mapping[str, Any]
) -> AsyncGenerator[Any, None]:
    span = spans.trace_operation(name, kind=kind, attributes=attributes)
    try:
        while True:
            with span.resumed():
                try:
                    item = await anext(source)
                except StopAsyncIteration:
                    return
            yield item
    except BaseException as exc:
        span.error(exc)
        raise
    finally:
        try:
            with span.resumed():
                await source.aclose()
        finally:
            span.end()
