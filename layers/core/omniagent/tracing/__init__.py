"""Spans with OpenInference attributes. This package imports no other part of omniagent, and OpenTelemetry only once
tracing is on. Until then every call returns at once.

    with bind_context(session_id="s1", user_id="u1", turn=3):
        with trace_operation("turn", kind=SpanKind.AGENT) as span:
            span.set_content(input="Hello")
"""

from .attributes import SpanKind
from .instrumentor import OmniAgentInstrumentor, flush_traces
from .operations import (
    bind_request,
    current_span,
    current_trace_id,
    current_traceparent,
    record_feedback,
    session_state,
    trace_job,
    trace_method,
    trace_operation,
    trace_request,
    trace_root,
    track_state_change,
    turn_ended,
    turn_state,
)
from .spans import Span, bind_context

__all__ = [
    "OmniAgentInstrumentor",
    "Span",
    "SpanKind",
    "bind_context",
    "bind_request",
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
