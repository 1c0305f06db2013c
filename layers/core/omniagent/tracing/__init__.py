"""Spans with OpenInference attributes. This package imports no other part of omniagent, and OpenTelemetry only once
tracing is on. Until then every call returns at once.

    with bind_context(session_id="s1", user_id="u1", turn=3):
        with trace_operation("turn", kind=SpanKind.AGENT) as span:
            span.set_content(input="Hello")
"""

from .attributes import SpanKind
from .binding import bind_context, bind_request
from .export import configure_tracing
from .feedback import record_feedback
from .instrumentor import OmniAgentInstrumentor, flush_traces
from .methods import trace_method
from .spans import (
    Span,
    current_span,
    current_trace_id,
    current_traceparent,
    trace_job,
    trace_operation,
    trace_request,
    trace_root,
    track_state_change,
)
from .states import session_state, turn_ended, turn_state

__all__ = [
    "OmniAgentInstrumentor",
    "Span",
    "SpanKind",
    "bind_context",
    "bind_request",
    "configure_tracing",
    "current_span",
    "current_trace_id",
    "current_traceparent",
    "flush_traces",
    "record_feedback",
    "session_state",
    "trace_job",
    "trace_method",
    "trace_operation",
    "trace_request",
    "trace_root",
    "track_state_change",
    "turn_ended",
    "turn_state",
]
