"""`trace_method`: a span around every call of a function, method or async generator."""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from . import spans
from .attributes import SpanKind

F = TypeVar("F", bound=Callable[..., Any])


def trace_method(*, kind: SpanKind | str = SpanKind.CHAIN, name: str | None = None) -> Callable[[F], F]:
    """Open a span around each call. The body reaches it with `current_span()`.

    It takes async functions, sync functions and async generators. The span of a generator lasts from the first step
    to the last; it is current inside the generator and never in the code that reads it.
    """
    kind = SpanKind(kind)

    def decorate(function: F) -> F:
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"{function.__qualname__}: trace_method takes no sync generators")
        if inspect.isasyncgenfunction(function):
            wrap = _wrap_generator
        elif inspect.iscoroutinefunction(function):
            wrap = _wrap_coroutine
        else:
            wrap = _wrap_function
        wrapped: F = wrap(function, name or function.__qualname__, kind)
        return wrapped

    return decorate


def _wrap_function(function: Callable[..., Any], name: str, kind: SpanKind) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with spans.trace_operation(name, kind=kind):
            return function(*args, **kwargs)

    return call


def _wrap_coroutine(function: Callable[..., Any], name: str, kind: SpanKind) -> Any:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with spans.trace_operation(name, kind=kind):
            return await function(*args, **kwargs)

    return call


def _wrap_generator(function: Callable[..., AsyncGenerator[Any, None]], name: str, kind: SpanKind) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        source = function(*args, **kwargs)
        # Without an instrumentor the reader gets the generator itself: no frame more per item.
        return source if spans.active_recorder() is None else _stepped(source, name, kind)

    return call


async def _stepped(source: AsyncGenerator[Any, None], name: str, kind: SpanKind) -> AsyncGenerator[Any, None]:
    span = spans.trace_operation(name, kind=kind)
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
