"""`configure_tracing`: the SDK with an OTLP exporter, set up for a process that is frozen between invocations."""

from collections.abc import Mapping
from typing import Final

from . import spans
from .instrumentor import FLUSH_TIMEOUT_SECONDS, OmniAgentInstrumentor

_TRACES_PATH: Final = "/v1/traces"
# Spans leave while the turn still runs, so that the flush at its end is short: between invocations nothing runs.
_SCHEDULE_DELAY_MILLIS: Final = 500


def configure_tracing(
    endpoint: str,
    *,
    service_name: str,
    headers: Mapping[str, str] | None = None,
    capture_content: bool = False,
) -> OmniAgentInstrumentor:
    """Turn tracing on, to any OTLP/HTTP collector. Does nothing if it is on already.

    `endpoint` is the collector's base address, as in OTEL_EXPORTER_OTLP_ENDPOINT, or the full address of its
    traces. Headers given here come on top of those in OTEL_EXPORTER_OTLP_HEADERS; OTEL_RESOURCE_ATTRIBUTES and
    OTEL_TRACES_SAMPLER work as everywhere.
    """
    instrumentor = OmniAgentInstrumentor()
    if instrumentor.is_instrumented:
        return instrumentor
    # Here, not above: the SDK is imported only when tracing is on.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from .recording import OpenTelemetryRecorder

    exporter = OTLPSpanExporter(traces_url(endpoint), headers=headers, timeout=FLUSH_TIMEOUT_SECONDS)
    provider = TracerProvider(resource=Resource.create({"service.name": service_name}))
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_SCHEDULE_DELAY_MILLIS))
    spans.activate(OpenTelemetryRecorder(provider, capture_content=capture_content, on_shutdown=provider.shutdown))
    return instrumentor


def traces_url(endpoint: str) -> str:
    """Return where a collector takes traces."""
    base = endpoint.rstrip("/")
    return base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH
