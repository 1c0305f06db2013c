"""Spans for the rest of the package. While no instrumentor is active every call here returns at once.

This module must not import OpenTelemetry: what records lives in `recording`, which `instrument()` loads.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Protocol, Self

from .attributes import SpanKind


class Span:
    """A span that is not recorded: every call does nothing. The recorded one overrides them all."""

    __slots__ = ()

    @property
    def is_recording(self) -> bool:
        """Whether anything set here is kept. Guard work that only feeds a span with it."""
        return False

    @property
    def captures_content(self) -> bool:
        """Whether input and output are kept. Guard work that only collects them with it."""
        return False

    def set(self, key: str, value: Any) -> None:
        """Set an attribute. None is left out; content is left out unless content capture is on."""

    def set_many(self, attributes: Mapping[str, Any]) -> None:
        """Set several attributes."""

    def set_content(self, *, input: Any = None, output: Any = None) -> None:  # noqa: A002 - OpenInference's names
        """Record what went in and came out, as text or JSON, if content capture is on."""

    def set_response(self, status: int, name: str | None = None) -> None:
        """Record the HTTP status of a request, and rename its span. A 5xx marks the span as failed."""

    def error(self, exc: BaseException, *, public: bool = False) -> None:
        """Mark the span as failed, with the exception's type.

        The message is recorded when it is `public` text or content capture is on. A cancellation is no error.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the span. An exception that passes through is recorded and goes on."""

    def resumed(self) -> AbstractContextManager[None]:
        """Make the span current for one step of a generator; the caller's own span comes back afterwards."""
        return nullcontext()

    def end(self) -> None:
        """End a span that was driven by `resumed` instead of `with`."""


class SpanRecorder(Protocol):
    """Where spans go while an instrumentor is active."""

    def start(self, name: str, kind: SpanKind, attributes: Mapping[str, Any] | None) -> Span: ...

    def start_request(self, name: str, headers: Mapping[str, str]) -> Span: ...

    def current(self) -> Span: ...

    def trace_id(self) -> str | None: ...

    def bind(self, attributes: Mapping[str, Any]) -> AbstractContextManager[None]: ...

    def attach(self, attributes: Mapping[str, Any]) -> None: ...

    def state_change(self, what: str, before: Any, after: Any, attributes: Mapping[str, Any]) -> None: ...

    def flush(self, timeout_seconds: float) -> bool: ...

    def shutdown(self) -> None: ...


NO_SPAN: Final = Span()
_recorder: SpanRecorder | None = None


def active_recorder() -> SpanRecorder | None:
    return _recorder


def activate(recorder: SpanRecorder | None) -> None:
    """Send the spans that start from now on to `recorder`; None turns tracing off."""
    global _recorder  # noqa: PLW0603 - one process has one tracer, and a plain global is the cheapest check
    _recorder = recorder


def trace_operation(
    name: str, *, kind: SpanKind | str = SpanKind.CHAIN, attributes: Mapping[str, Any] | None = None
) -> Span:
    """Open a span around a block: `with trace_operation("context") as span:`.

    It works in async code and its children nest over tasks. Do not `yield` out of the block unless the generator
    is decorated with `trace_method`, which keeps the span from becoming the reader's current one.
    """
    if _recorder is None:
        return NO_SPAN
    return _recorder.start(name, SpanKind(kind), attributes)


def trace_request(name: str, headers: Mapping[str, str]) -> Span:
    """Open the span of one HTTP request, the root of everything that is done for it.

    It continues the trace of the caller's W3C `traceparent` and `tracestate`; malformed ones are ignored.
    """
    if _recorder is None:
        return NO_SPAN
    return _recorder.start_request(name, headers)


def current_span() -> Span:
    """Return the span that is open here, or one that ignores everything."""
    return NO_SPAN if _recorder is None else _recorder.current()


def current_trace_id() -> str | None:
    """Return the trace id as 32 hex digits, or None outside of any span."""
    return None if _recorder is None else _recorder.trace_id()


def track_state_change(what: str, before: Any, after: Any, **attributes: Any) -> None:
    """Record on the current span that `what` went from one state to another. States are names or numbers, not text."""
    if _recorder is not None:
        _recorder.state_change(what, before, after, attributes)
