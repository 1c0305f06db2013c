"""Spans with OpenInference attributes. This package imports no other part of omniagent, and OpenTelemetry only once
tracing is on (`recording`). Until then every call returns at once.

    with bind_context(session_id="s1", user_id="u1", turn=3):
        with trace_operation("turn", kind=SpanKind.AGENT) as span:
            span.set_content(input="Hello")
"""

import asyncio
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from . import attributes as names
from .attributes import SpanKind as SpanKind
from .spans import NO_SPAN, bind_fields
from .spans import Span as Span
from .spans import bind_context as bind_context

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from .recording import OpenTelemetryRecorder

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT_SECONDS: Final = 2.0
# As `Settings` reads it.
_YES: Final = frozenset({"1", "true", "yes", "on"})

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
TurnEnding = Literal["complete", "waiting", "cancelled", "failed", "interrupted"]
TurnPhase = Literal["planned", "running", "stopping"] | TurnEnding
_SESSION_PHASES: Final[Mapping[TurnPhase, str]] = {"running": "running", "stopping": "running", "waiting": "waiting"}
"""What a session is while its turn is in this phase. In the others it is idle."""

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


def trace_database(name: str, collection: str | None = None) -> Callable[[F], F]:
    """Open a span around each call of an operation, which is named `<system>.<operation>`: `mongodb.begin_turn`."""
    system, _, operation = name.rpartition(".")
    attributes = {names.DB_SYSTEM: system, names.DB_OPERATION: operation, names.DB_COLLECTION: collection}

    def decorate(function: F) -> F:
        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            with trace_operation(name, kind=SpanKind.DB, attributes=attributes):
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
    current_span().set_many({names.USER_ID: user_id, names.SESSION_ID: session_id})


def turn_state(
    before: TurnPhase, after: TurnPhase, *, stop_reason: str | None = None, finish_reason: str | None = None
) -> None:
    """Record a step of the turn's life on the current span, and what it means for the session.

    A turn holds its session until it waits or ends. `stop_reason` says who or what stopped it.
    """
    if _recorder is None:
        return
    reasons = {names.FINISH_REASON: finish_reason, names.STOP_REASON: stop_reason}
    changes: list[tuple[str, str, str, Mapping[str, str | None]]] = [("turn", before, after, reasons)]
    held, is_held = (_SESSION_PHASES.get(phase, "idle") for phase in (before, after))
    if held != is_held:
        changes.insert(0 if after == "running" else 1, ("session", held, is_held, {}))
    for what, old, new, more in changes:
        change = {names.STATE_NAME: what, names.STATE_BEFORE: old, names.STATE_AFTER: new, **more}
        _recorder.current().add_event(names.STATE_CHANGE, change)


def turn_ended(status: TurnEnding, *, finish_reason: str | None = None, stop_reason: str | None = None) -> None:
    """Record the turn's last change of state. Its status and the reasons also become attributes of the current span."""
    reasons = {names.FINISH_REASON: finish_reason, names.STOP_REASON: stop_reason}
    current_span().set_many({names.TURN_STATUS: status, **reasons})
    turn_state("stopping" if stop_reason else "running", status, stop_reason=stop_reason, finish_reason=finish_reason)


def record_feedback(
    message_id: str, rating: Literal["up", "down"] | None, text: str | None, *, traceparent: str | None
) -> None:
    """Record a user's feedback on an answer. Without a rating and a text, record that it was withdrawn.

    The span joins the turn's trace if its `traceparent` is known, and annotates that trace. The message's id identifies
    the annotation: the newest one counts.
    """
    if _recorder is not None:
        _recorder.record_feedback(message_id, rating, text, traceparent)


class OmniAgentInstrumentor:
    """Sends the package's spans to a tracer provider. All instances share the state of the process.

    It has the interface of OpenTelemetry's instrumentors: the command `opentelemetry-instrument` finds it by its entry
    point and turns it on.
    """

    @property
    def is_instrumented(self) -> bool:
        return _recorder is not None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that have to be installed: none besides this one."""
        return ()

    def instrument(
        self, tracer_provider: "TracerProvider | None" = None, capture_content: bool | None = None, **_options: Any
    ) -> None:
        """Record spans with `tracer_provider`, or with the global one.

        `capture_content` also records text of users, models and tools. None, as `opentelemetry-instrument` passes it,
        means the value of TRACE_CONTENT. Other options, which OpenTelemetry's loader passes to every instrumentor, are
        ignored. The provider generates the ids. The SDK's default generator uses `random`: processes restored from one
        snapshot repeat ids unless they seed it again. The provider of `configure_tracing` has no such state.
        """
        if self.is_instrumented:
            logger.warning("tracing is already on, the second instrument() is ignored")
            return
        from opentelemetry.trace import get_tracer_provider

        from .recording import OpenTelemetryRecorder

        if capture_content is None:
            capture_content = os.environ.get("TRACE_CONTENT", "").lower() in _YES
        provider = tracer_provider or get_tracer_provider()
        activate(OpenTelemetryRecorder(provider, capture_content=capture_content))

    def uninstrument(self, **_options: Any) -> None:
        """Stop recording. A provider made by `configure_tracing` exports its last spans and is shut down."""
        recorder = _recorder
        activate(None)
        if recorder is not None:
            recorder.shutdown()

    def flush(self, timeout_seconds: float = FLUSH_TIMEOUT_SECONDS) -> bool:
        """Export all ended spans. Returns False if it fails or takes longer. Async code awaits `flush_traces`."""
        if _recorder is None:
            return True
        flushed = _recorder.flush()
        try:
            flushed.result(timeout_seconds)
        except Exception:
            flushed.cancel()  # unless it has begun: then it goes on in the background
            return False
        return True


def disconnect_traces() -> None:
    """Export all ended spans and close the connections: they do not survive a snapshot of the process."""
    OmniAgentInstrumentor().flush()
    if _recorder is not None:
        _recorder.disconnect()


async def flush_traces(timeout_seconds: float = FLUSH_TIMEOUT_SECONDS) -> bool:
    """Export all ended spans without blocking the event loop. Returns False if it fails or takes longer.

    Await it after the end of the stream and before the handler returns: the process is frozen then.
    """
    if _recorder is None:
        return True
    try:
        await asyncio.wait_for(asyncio.wrap_future(_recorder.flush()), timeout_seconds)
    except Exception:
        return False
    return True
