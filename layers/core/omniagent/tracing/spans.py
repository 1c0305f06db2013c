"""The functions that open spans. While tracing is off each of them returns at once.

This module must not import OpenTelemetry. Recorded spans are in `recording`, which `instrument()` imports.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Protocol, Self

from .attributes import SpanKind


class Span:
    """A span that is not recorded: every method does nothing. `RecordedSpan` overrides all of them."""

    __slots__ = ()

    @property
    def is_recording(self) -> bool:
        """Whether attributes are recorded. Check it before work that only serves the span."""
        return False

    @property
    def captures_content(self) -> bool:
        """Whether input and output are recorded. Check it before work that only collects them."""
        return False

    def set(self, key: str, value: Any) -> None:
        """Set an attribute. None is ignored; content is ignored unless content capture is on."""

    def set_many(self, attributes: Mapping[str, Any]) -> None:
        """Set several attributes."""

    def set_content(self, *, input: Any = None, output: Any = None) -> None:  # noqa: A002 - OpenInference's names
        """Record the input and the output of the operation, as text or JSON, if content capture is on."""

    def set_response(self, status: int, name: str | None = None) -> None:
        """Record the HTTP status of a request, and rename its span. A 5xx marks the span as failed."""

    def error(self, exc: BaseException, *, public: bool = False) -> None:
        """Mark the span as failed and record the exception's type. A cancellation is not an error.

        The message is recorded if it is `public` text or content capture is on.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the span. An exception is recorded and propagates."""

    def resumed(self) -> AbstractContextManager[None]:
        """Make the span current for one step of a generator. Afterwards the caller's span is current again."""
        return nullcontext()

    def end(self) -> None:
        """End a span that was made current by `resumed` instead of `with`."""


class SpanRecorder(Protocol):
    """Starts and exports spans while tracing is on."""

    def start(self, name: str, kind: SpanKind, attributes: Mapping[str, Any] | None) -> Span: ...

    def start_request(self, name: str, headers: Mapping[str, str]) -> Span: ...

    def start_job(self, name: str, traceparent: str) -> Span: ...

    def current(self) -> Span: ...

    def trace_id(self) -> str | None: ...

    def bind(self, attributes: Mapping[str, Any]) -> AbstractContextManager[None]: ...

    def attach(self, attributes: Mapping[str, Any]) -> None: ...

    def state_change(self, what: str, before: Any, after: Any, attributes: Mapping[str, Any]) -> None: ...

    def traceparent(self) -> str | None: ...

    def annotate(
        self, name: str, traceparent: str | None, attributes: Mapping[str, Any], event: Mapping[str, Any]
    ) -> None: ...

    def flush(self, timeout_seconds: float) -> bool: ...

    def disconnect(self) -> None: ...

    def shutdown(self) -> None: ...


NO_SPAN: Final = Span()
_recorder: SpanRecorder | None = None


def active_recorder() -> SpanRecorder | None:
    return _recorder


def activate(recorder: SpanRecorder | None) -> None:
    """Start all later spans with `recorder`. None turns tracing off."""
    global _recorder  # noqa: PLW0603 - one process has one tracer, and a plain global is the cheapest check
    _recorder = recorder


def trace_operation(
    name: str, *, kind: SpanKind | str = SpanKind.CHAIN, attributes: Mapping[str, Any] | None = None
) -> Span:
    """Open a span around a block: `with trace_operation("context") as span:`.

    Spans opened inside, also in tasks started inside, become its children. Do not `yield` inside the block: the span
    would become current in the code that iterates the generator. See `Span.resumed`.
    """
    if _recorder is None:
        return NO_SPAN
    return _recorder.start(name, SpanKind(kind), attributes)


def trace_root(name: str) -> Span:
    """Open a span around a block that is not part of a request, a job or another span: its spans are one trace."""
    if _recorder is None or _recorder.trace_id() is not None:
        return NO_SPAN
    return _recorder.start(name, SpanKind.CHAIN, None)


def trace_request(name: str, headers: Mapping[str, str]) -> Span:
    """Open the span of one HTTP request, the root of all spans of the request.

    It continues the caller's trace if the headers have a valid W3C `traceparent`.
    """
    if _recorder is None:
        return NO_SPAN
    return _recorder.start_request(name, headers)


def trace_job(name: str, traceparent: str) -> Span:
    """Open the span of a job from a queue. It continues the sender's trace.

    Inside another instrumentation's span, it is that span's child and has a link to the sender's span.
    """
    if _recorder is None:
        return NO_SPAN
    return _recorder.start_job(name, traceparent)


def current_span() -> Span:
    """Return the current span, or one that does nothing."""
    return NO_SPAN if _recorder is None else _recorder.current()


def current_trace_id() -> str | None:
    """Return the current trace id as 32 hex digits, or None outside of any span."""
    return None if _recorder is None else _recorder.trace_id()


def current_traceparent() -> str | None:
    """Return the current span as a W3C `traceparent`, by which a later span can join its trace."""
    return None if _recorder is None else _recorder.traceparent()


def track_state_change(what: str, before: Any, after: Any, **attributes: Any) -> None:
    """Record on the current span that `what` went from one state to another. States are names or numbers, not text."""
    if _recorder is not None:
        _recorder.state_change(what, before, after, attributes)
