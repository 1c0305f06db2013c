"""Recorded spans. Imports OpenTelemetry's API, so it is imported only when tracing is turned on."""

import asyncio
import json
import threading
import time
import traceback as tracebacks
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from . import attributes as names
from .attributes import SpanKind
from .redaction import redact_text
from .spans import NO_SPAN, Span

_CONTEXT_KEYS: Final = (names.SESSION_ID, names.USER_ID, names.USER_CATEGORY, names.TURN_NUMBER)
_MAX_TEXT: Final = 32_000
_CALLER: Final = TraceContextTextMapPropagator()


class RecordedSpan(Span):
    """An OpenTelemetry span and the context that it is current in."""

    __slots__ = ("_capture_content", "_failure", "_inside", "_outside", "_span")

    def __init__(self, span: trace.Span, *, capture_content: bool) -> None:
        self._span = span
        self._capture_content = capture_content
        self._inside: Context | None = None
        self._outside: Context | None = None
        self._failure: BaseException | None = None

    @property
    def is_recording(self) -> bool:
        return self._span.is_recording()

    @property
    def captures_content(self) -> bool:
        return self._capture_content and self.is_recording

    def set(self, key: str, value: Any) -> None:
        self.set_many({key: value})

    def set_many(self, attributes: Mapping[str, Any]) -> None:
        self._span.set_attributes(_recordable(attributes, capture_content=self._capture_content))

    def set_content(self, *, input: Any = None, output: Any = None) -> None:  # noqa: A002 - OpenInference's names
        if not self._capture_content:
            return
        for value, value_key, type_key in (
            (input, names.INPUT_VALUE, names.INPUT_MIME_TYPE),
            (output, names.OUTPUT_VALUE, names.OUTPUT_MIME_TYPE),
        ):
            if value is not None:
                text, mime_type = _content(value)
                self._span.set_attributes({value_key: text, type_key: mime_type})

    def set_response(self, status: int, name: str | None = None) -> None:
        if name is not None:
            self._span.update_name(name)
        self._span.set_attribute(names.HTTP_STATUS, status)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._span.set_status(trace.StatusCode.ERROR)

    def error(self, exc: BaseException, *, public: bool = False) -> None:
        if isinstance(exc, asyncio.CancelledError | GeneratorExit):
            self._span.set_attribute(names.CANCELLED, True)
            return
        if exc is self._failure:  # already recorded by the body, now propagating
            return
        self._failure = exc
        type_name = _qualified_name(type(exc))
        event = {names.EXCEPTION_TYPE: type_name}
        message = redact_text(str(exc))[:_MAX_TEXT] if public or self._capture_content else None
        if message is not None:
            event[names.EXCEPTION_MESSAGE] = message
        if self._capture_content:
            stack = "".join(tracebacks.format_exception(exc))
            event[names.EXCEPTION_STACKTRACE] = redact_text(stack)[-_MAX_TEXT:]
        self._span.add_event("exception", event)
        self._span.set_attribute(names.ERROR_TYPE, type_name)
        self._span.set_status(trace.StatusCode.ERROR, message)

    def __enter__(self) -> Self:
        self._outside = otel_context.get_current()
        self._inside = trace.set_span_in_context(self._span, self._outside)
        otel_context.attach(self._inside)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is not None:
            self.error(exc)
        # No detach by token: a generator may be closed in another task, where the token is invalid.
        # No comparison with `_inside`: `bind_request` may have replaced the context.
        if self._outside is not None and trace.get_current_span() is self._span:
            otel_context.attach(self._outside)
        self._span.end()

    def resumed(self) -> AbstractContextManager[None]:
        return self._resume()

    @contextmanager
    def _resume(self) -> Iterator[None]:
        outside = otel_context.get_current()
        otel_context.attach(self._inside or trace.set_span_in_context(self._span, outside))
        try:
            yield
        finally:
            # Spans left open inside the generator are current again in its next step, never in the caller.
            self._inside = otel_context.get_current()
            otel_context.attach(outside)

    def end(self) -> None:
        self._span.end()


class _Headers(Getter[Mapping[str, str]]):
    """Reads propagation headers, whose names are in lower case."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key)
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


class OpenTelemetryRecorder:
    """Starts spans with the tracer of one provider."""

    def __init__(
        self,
        provider: trace.TracerProvider,
        *,
        capture_content: bool,
        on_shutdown: Callable[[], None] | None = None,
        on_disconnect: Callable[[], None] | None = None,
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("omniagent")
        self._capture_content = capture_content
        self._on_shutdown = on_shutdown
        self._on_disconnect = on_disconnect
        self._flusher: threading.Thread | None = None

    def start(self, name: str, kind: SpanKind, attributes: Mapping[str, Any] | None) -> Span:
        if kind is SpanKind.DB:
            return self._handle(self._start(name, {names.SPAN_KIND: None, **(attributes or {})}, trace.SpanKind.CLIENT))
        return self._handle(self._start(name, {names.SPAN_KIND: kind.value, **(attributes or {})}))

    def start_request(self, name: str, headers: Mapping[str, str]) -> Span:
        if trace.get_current_span().get_span_context().is_valid:
            return self._handle(self._start(name))  # a part of the request of another instrumentation's server span
        context = _CALLER.extract(headers, otel_context.get_current(), _Headers())
        return self._handle(self._start(name, kind=trace.SpanKind.SERVER, context=context))

    def start_job(self, name: str, traceparent: str) -> Span:
        headers = {"traceparent": traceparent}
        if trace.get_current_span().get_span_context().is_valid:
            sender = trace.get_current_span(_CALLER.extract(headers, Context(), _Headers())).get_span_context()
            return self._handle(self._start(name, link=sender))
        # Values bound here, such as the session, are kept in addition to the sender's trace.
        context = _CALLER.extract(headers, otel_context.get_current(), _Headers())
        return self._handle(self._start(name, kind=trace.SpanKind.CONSUMER, context=context))

    def _start(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        *,
        context: Context | None = None,
        link: trace.SpanContext | None = None,
    ) -> trace.Span:
        """Start a span with what is bound here, by default a CHAIN."""
        bound = {key: otel_context.get_value(key) for key in _CONTEXT_KEYS}
        return self._tracer.start_span(
            name,
            context,
            kind=kind,
            attributes=self._recordable({names.SPAN_KIND: SpanKind.CHAIN.value, **bound, **(attributes or {})}),
            links=[trace.Link(link)] if link is not None and link.is_valid else None,
        )

    def current(self) -> Span:
        otel_span = trace.get_current_span()
        return self._handle(otel_span) if otel_span.is_recording() else NO_SPAN

    def trace_id(self) -> str | None:
        span_context = trace.get_current_span().get_span_context()
        return trace.format_trace_id(span_context.trace_id) if span_context.is_valid else None

    def traceparent(self) -> str | None:
        carrier: dict[str, str] = {}
        _CALLER.inject(carrier)
        return carrier.get("traceparent")

    def annotate(
        self, name: str, traceparent: str | None, attributes: Mapping[str, Any], event: Mapping[str, Any]
    ) -> None:
        """Record an event as a span of another trace, linked to the current span."""
        here, context = trace.get_current_span().get_span_context(), None
        if traceparent:
            context = _CALLER.extract({"traceparent": traceparent}, otel_context.get_current(), _Headers())
        span = self._start(name, attributes, context=context, link=here if traceparent else None)
        span.add_event(names.GEN_AI_EVALUATION_RESULT, self._recordable(event))
        span.end()

    def attach(self, attributes: Mapping[str, Any]) -> None:
        context = otel_context.get_current()
        for key, value in attributes.items():
            context = otel_context.set_value(key, value, context)
        otel_context.attach(context)

    @contextmanager
    def bind(self, attributes: Mapping[str, Any]) -> Iterator[None]:
        outside = otel_context.get_current()
        self.attach(attributes)
        inside = otel_context.get_current()
        try:
            yield
        finally:
            if otel_context.get_current() is inside:
                otel_context.attach(outside)

    def state_change(self, what: str, before: Any, after: Any, attributes: Mapping[str, Any]) -> None:
        event = {names.STATE_NAME: what, names.STATE_BEFORE: before, names.STATE_AFTER: after, **attributes}
        trace.get_current_span().add_event(names.STATE_CHANGE, self._recordable(event))

    def flush(self, timeout_seconds: float) -> bool:
        """Export all ended spans. Returns False on a timeout; the export then continues in the background.

        The SDK's batch processor ignores the timeout of `force_flush`, so the flush runs in a thread that is joined
        with the timeout. There is at most one such thread, however long a collector hangs.
        """
        force_flush = getattr(self._provider, "force_flush", None)
        if force_flush is None:
            return True
        deadline = time.monotonic() + timeout_seconds
        if self._flusher is not None and not _joined(self._flusher, deadline):
            return False
        self._flusher = threading.Thread(target=force_flush, name="omniagent-flush", daemon=True)
        self._flusher.start()
        return _joined(self._flusher, deadline)

    def disconnect(self) -> None:
        """Close the connections to the collector. The next export opens new ones."""
        if self._on_disconnect is not None:
            self._on_disconnect()

    def shutdown(self) -> None:
        """Shut down what was created for this recorder."""
        if self._on_shutdown is not None:
            self._on_shutdown()

    def _recordable(self, attributes: Mapping[str, Any]) -> dict[str, AttributeValue]:
        return _recordable(attributes, capture_content=self._capture_content)

    def _handle(self, span: trace.Span) -> RecordedSpan:
        return RecordedSpan(span, capture_content=self._capture_content)


def _joined(thread: threading.Thread, deadline: float) -> bool:
    thread.join(max(0.0, deadline - time.monotonic()))
    return not thread.is_alive()


def _recordable(attributes: Mapping[str, Any], *, capture_content: bool) -> dict[str, AttributeValue]:
    return {
        key: _attribute_value(value)
        for key, value in attributes.items()
        if value is not None and (capture_content or not key.startswith(names.CONTENT_PREFIXES))
    }


def _attribute_value(value: Any) -> AttributeValue:
    if isinstance(value, str):
        # A member of a StrEnum is exported as plain text.
        return str(value)[:_MAX_TEXT]
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(str(item)[:_MAX_TEXT] for item in value)
    return str(value)[:_MAX_TEXT]


def _content(value: Any) -> tuple[str, str]:
    if isinstance(value, str):
        return value[:_MAX_TEXT], "text/plain"
    return json.dumps(value, default=str, ensure_ascii=False)[:_MAX_TEXT], "application/json"


def _qualified_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
