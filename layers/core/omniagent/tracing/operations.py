"""The functions that open spans and record on the current one. While tracing is off each of them returns at once.

This module must not import OpenTelemetry. `recording`, which does, is imported when tracing is turned on.
"""

import functools
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from .attributes import (
    BOUND_ATTRIBUTES,
    DB_OPERATION,
    DB_SYSTEM,
    FINISH_REASON,
    STATE_AFTER,
    STATE_BEFORE,
    STATE_CHANGE,
    STATE_NAME,
    STOP_REASON,
    TURN_STATUS,
    SpanKind,
)
from .spans import NO_SPAN, Span, bind_fields

if TYPE_CHECKING:
    from .recording import OpenTelemetryRecorder

F = TypeVar("F", bound=Callable[..., Any])
SessionPhase = Literal["idle", "running", "waiting"]
TurnEnding = Literal["complete", "waiting", "cancelled", "failed", "interrupted"]
TurnPhase = Literal["planned", "running", "stopping"] | TurnEnding

_recorder: "OpenTelemetryRecorder | None" = None


def active_recorder() -> "OpenTelemetryRecorder | None":
    return _recorder


def activate(recorder: "OpenTelemetryRecorder | None") -> None:
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
    return NO_SPAN if _recorder is None else _recorder.start(name, SpanKind(kind), attributes)


def trace_method(
    *, kind: SpanKind | str = SpanKind.CHAIN, name: str | None = None, attributes: Mapping[str, Any] | None = None
) -> Callable[[F], F]:
    """Open a span with these attributes around each call. `current_span()` returns it inside the function.

    A DB span named `<system>.<operation>`, such as `mongodb.begin_turn`, also gets both as `db.*` attributes.
    """

    def decorate(function: F) -> F:
        if not iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__}: trace_method takes async functions only")
        span_name = name or function.__qualname__
        system, _, operation = span_name.rpartition(".")
        implied = {DB_SYSTEM: system, DB_OPERATION: operation} if kind == SpanKind.DB and system else {}
        all_attributes = {**implied, **(attributes or {})}

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            with trace_operation(span_name, kind=kind, attributes=all_attributes):
                return await function(*args, **kwargs)

        return cast("F", call)

    return decorate


def trace_root(name: str) -> Span:
    """Open a span around a block that is not part of a request, a job or another span: its spans are one trace."""
    return NO_SPAN if current_traceparent() is not None else trace_operation(name)


def trace_request(name: str, headers: Mapping[str, str]) -> Span:
    """Open the span of one HTTP request, the root of all spans of the request.

    It continues the caller's trace if the headers have a valid W3C `traceparent`.
    """
    return NO_SPAN if _recorder is None else _recorder.start_received(name, headers, "SERVER")


def trace_job(name: str, traceparent: str) -> Span:
    """Open the span of a job from a queue. It continues the sender's trace."""
    headers = {"traceparent": traceparent}
    return NO_SPAN if _recorder is None else _recorder.start_received(name, headers, "CONSUMER")


def current_span() -> Span:
    """Return the current span, or one that does nothing."""
    return NO_SPAN if _recorder is None else _recorder.current()


def current_trace_id() -> str | None:
    """Return the current trace id as 32 hex digits, or None outside of any span."""
    traceparent = current_traceparent()
    return None if traceparent is None else traceparent.split("-")[1]


def current_traceparent() -> str | None:
    """Return the current span as a W3C `traceparent`, by which a later span can join its trace."""
    return None if _recorder is None else _recorder.traceparent()


def bind_request(*, user_id: str | None = None, session_id: str | None = None) -> None:
    """Put the user's hash, or the session, on every later span and log line of this request, and on its current span.

    Called when a request has been authenticated, and when its session is known. Unlike `bind_context` it is not a
    block: it ends with the binding of the request id.
    """
    bind_fields(user_id=user_id, session_id=session_id)
    current_span().set_many({BOUND_ATTRIBUTES["user_id"]: user_id, BOUND_ATTRIBUTES["session_id"]: session_id})


def track_state_change(what: str, before: Any, after: Any, **attributes: Any) -> None:
    """Record on the current span that `what` went from one state to another. States are names or numbers, not text."""
    if _recorder is not None:
        change = {STATE_NAME: what, STATE_BEFORE: before, STATE_AFTER: after, **attributes}
        _recorder.current().add_event(STATE_CHANGE, change)


def session_state(before: SessionPhase, after: SessionPhase) -> None:
    """Record that the session is held by a turn, free again, or waiting for a human or a client."""
    track_state_change("session", before, after)


def turn_state(before: TurnPhase, after: TurnPhase, *, stop_reason: str | None = None) -> None:
    """Record a step of the turn's life. `stop_reason` says who or what stopped it."""
    track_state_change("turn", before, after, **{STOP_REASON: stop_reason})


def turn_ended(
    before: TurnPhase, status: TurnEnding, *, finish_reason: str | None = None, stop_reason: str | None = None
) -> None:
    """Record the turn's last change of state. Its status and the reasons also become attributes of the current span."""
    reasons = {FINISH_REASON: finish_reason, STOP_REASON: stop_reason}
    current_span().set_many({TURN_STATUS: status, **reasons})
    track_state_change("turn", before, status, **reasons)


def record_feedback(
    message_id: str, rating: Literal["up", "down"] | None, text: str | None, *, traceparent: str | None
) -> None:
    """Record a user's feedback on an answer. Without a rating and a text, record that it was withdrawn.

    The span joins the turn's trace if its `traceparent` is known, and annotates that trace. The message's id identifies
    the annotation: the newest one counts.
    """
    if _recorder is not None:
        _recorder.record_feedback(message_id, rating, text, traceparent)
