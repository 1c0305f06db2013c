"""Recorded spans. Imports OpenTelemetry's API, so it is imported only when tracing is turned on."""

import asyncio
import json
import traceback as tracebacks
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Literal, Self

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from . import attributes as names
from .attributes import SpanKind
from .redaction import redact_text
from .spans import NO_SPAN, Span, bound_fields

FEEDBACK_SPAN: Final = "feedback"
FEEDBACK_NAME: Final = "user_feedback"
_MAX_TEXT: Final = 32_000
_W3C: Final = TraceContextTextMapPropagator()


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
    def captures_content(self) -> bool:
        return self._capture_content and self._span.is_recording()

    def set_many(self, attributes: Mapping[str, Any]) -> None:
        self._span.set_attributes(_recordable(attributes, capture_content=self._capture_content))

    def set_content(self, *, input: Any = None, output: Any = None) -> None:  # noqa: A002 - OpenInference's names
        if not self._capture_content:
            return
        for value, value_key, type_key in (
            (input, names.INPUT_VALUE, names.INPUT_MIME_TYPE),
            (output, names.OUTPUT_VALUE, names.OUTPUT_MIME_TYPE),
        ):
            if isinstance(value, str):
                self.set_many({value_key: value, type_key: "text/plain"})
            elif value is not None:
                text = json.dumps(value, default=str, ensure_ascii=False)
                self.set_many({value_key: text, type_key: "application/json"})

    def set_response(self, status: int, name: str | None = None) -> None:
        if name is not None:
            self._span.update_name(name)
        self._span.set_attribute(names.HTTP_STATUS, status)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._span.set_status(trace.StatusCode.ERROR)

    def add_event(self, name: str, attributes: Mapping[str, Any]) -> None:
        self._span.add_event(name, _recordable(attributes, capture_content=self._capture_content))

    def error(self, exc: BaseException) -> None:
        if isinstance(exc, asyncio.CancelledError | GeneratorExit):
            self._span.set_attribute(names.CANCELLED, True)
            return
        if exc is self._failure:  # already recorded by the body, now propagating
            return
        self._failure = exc
        kind, message, stack = type(exc), None, None
        type_name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        if self._capture_content:
            message = redact_text(str(exc))[:_MAX_TEXT]
            stack = redact_text("".join(tracebacks.format_exception(exc)))[-_MAX_TEXT:]
        self.add_event(
            "exception",
            {names.EXCEPTION_TYPE: type_name, names.EXCEPTION_MESSAGE: message, names.EXCEPTION_STACKTRACE: stack},
        )
        self._span.set_attribute(names.ERROR_TYPE, type_name)
        self._span.set_status(trace.StatusCode.ERROR, message)

    def __enter__(self) -> Self:
        self._outside = otel_context.get_current()
        otel_context.attach(self._made_current(self._outside))
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is not None:
            self.error(exc)
        # No detach by token: a generator may be closed in another task, where the token is invalid.
        if self._outside is not None and trace.get_current_span() is self._span:
            otel_context.attach(self._outside)
        self._span.end()

    @contextmanager
    def resumed(self) -> Iterator[None]:
        outside = otel_context.get_current()
        otel_context.attach(self._inside or self._made_current(outside))
        try:
            yield
        finally:
            # Spans left open inside the generator are current again in its next step, never in the caller.
            self._inside = otel_context.get_current()
            otel_context.attach(outside)

    def end(self) -> None:
        self._span.end()

    def _made_current(self, context: Context) -> Context:
        """Return the context with this span, and with what is bound: other OpenInference instrumentations read that."""
        for key, value in _bound_attributes().items():
            context = otel_context.set_value(key, value, context)
        return trace.set_span_in_context(self._span, context)


class OpenTelemetryRecorder:
    """Starts spans with the tracer of one provider."""

    def __init__(
        self,
        provider: trace.TracerProvider,
        *,
        capture_content: bool,
        shutdown: Callable[[], None] = lambda: None,
        disconnect: Callable[[], None] = lambda: None,
    ) -> None:
        self._tracer = provider.get_tracer("omniagent")
        self._force_flush: Callable[[], object] = getattr(provider, "force_flush", lambda: None)
        self._flusher = ThreadPoolExecutor(1, "omniagent-flush")
        self._capture_content = capture_content
        self._shutdown = shutdown
        self.disconnect = disconnect
        """Closes the connections to the collector. The next export opens new ones."""

    def start(
        self,
        name: str,
        kind: SpanKind = SpanKind.CHAIN,
        attributes: Mapping[str, Any] | None = None,
        *,
        role: trace.SpanKind = trace.SpanKind.INTERNAL,
        parent: Context | None = None,
        link: trace.SpanContext | None = None,
    ) -> RecordedSpan:
        """Start a span with what is bound here, by default as a child of the current span."""
        is_database = kind is SpanKind.DB
        own = {names.SPAN_KIND: None if is_database else kind.value, **_bound_attributes(), **(attributes or {})}
        span = self._tracer.start_span(
            name,
            parent,
            kind=trace.SpanKind.CLIENT if is_database else role,
            attributes=_recordable(own, capture_content=self._capture_content),
            links=[trace.Link(link)] if link is not None and link.is_valid else None,
        )
        return RecordedSpan(span, capture_content=self._capture_content)

    def start_received(self, name: str, headers: Mapping[str, str], role: Literal["SERVER", "CONSUMER"]) -> Span:
        """Continue the sender's trace. Inside the span of another instrumentation, only link to it."""
        sender = _W3C.extract(headers)
        if trace.get_current_span().get_span_context().is_valid:
            return self.start(name, link=trace.get_current_span(sender).get_span_context())
        return self.start(name, role=trace.SpanKind[role], parent=sender)

    def current(self) -> Span:
        span = trace.get_current_span()
        return RecordedSpan(span, capture_content=self._capture_content) if span.is_recording() else NO_SPAN

    def traceparent(self) -> str | None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier.get("traceparent")

    def record_feedback(self, message_id: str, rating: str | None, text: str | None, traceparent: str | None) -> None:
        """Record feedback as OpenInference's annotation of the turn's trace, and as OpenTelemetry's evaluation."""
        score, label = {"up": 1, "down": 0}.get(rating or ""), rating or ("comment" if text else "withdrawn")
        annotation = {
            f"{names.ANNOTATION}.name": FEEDBACK_NAME,
            f"{names.ANNOTATION}.score": score,
            f"{names.ANNOTATION}.label": label,
            f"{names.ANNOTATION}.explanation": text or None,
            f"{names.ANNOTATION}.annotator_kind": "HUMAN",
            f"{names.ANNOTATION}.identifier": message_id,
        }
        evaluation = {
            f"{names.EVALUATION}.name": FEEDBACK_NAME,
            f"{names.EVALUATION}.score.value": score,
            f"{names.EVALUATION}.score.label": label,
            f"{names.EVALUATION}.explanation": text or None,
            names.RESPONSE_ID: message_id,
        }
        if traceparent:
            turn, here = _W3C.extract({"traceparent": traceparent}), trace.get_current_span().get_span_context()
            span = self.start(FEEDBACK_SPAN, attributes=annotation, parent=turn, link=here)
        else:  # no annotation: it would be one of the feedback request's own trace
            span = self.start(FEEDBACK_SPAN)
        span.add_event(f"{names.EVALUATION}.result", evaluation)
        span.end()

    def flush(self) -> "Future[object]":
        """Export all ended spans in a thread: the SDK's batch processor ignores the timeout of `force_flush`.

        The thread is the recorder's own, because hanging tools may occupy every other one. There is one, however long
        a collector hangs.
        """
        return self._flusher.submit(self._force_flush)

    def shutdown(self) -> None:
        """Shut down what was created for this recorder."""
        self._flusher.shutdown(wait=False)
        self._shutdown()


def _bound_attributes() -> dict[str, str | int]:
    return {
        names.BOUND_ATTRIBUTES[field]: value
        for field, value in bound_fields().items()
        if field in names.BOUND_ATTRIBUTES
    }


def _recordable(attributes: Mapping[str, Any], *, capture_content: bool) -> dict[str, AttributeValue]:
    return {
        key: _attribute_value(value)
        for key, value in attributes.items()
        if value is not None and (capture_content or not key.startswith(names.CONTENT_PREFIXES))
    }


def _attribute_value(value: Any) -> AttributeValue:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(str(item)[:_MAX_TEXT] for item in value)
    return str(value)[:_MAX_TEXT]  # also a member of a StrEnum is exported as plain text
