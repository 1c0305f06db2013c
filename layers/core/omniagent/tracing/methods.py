"""`trace_method`: a span around every call of an async function."""

import functools
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

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
    """

    def decorate(function: F) -> F:
        if not iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__}: trace_method takes async functions only")
        span_name = name or function.__qualname__
        system, _, operation = span_name.rpartition(".")
        is_database = kind == SpanKind.DB and system
        implied = {DB_SYSTEM: system, DB_OPERATION: operation} if is_database else {}
        all_attributes = {**implied, **(attributes or {})}

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            with spans.trace_operation(span_name, kind=kind, attributes=all_attributes):
                return await function(*args, **kwargs)

        return cast("F", call)

    return decorate
