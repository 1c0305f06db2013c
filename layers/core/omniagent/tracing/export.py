"""`configure_tracing`: the SDK with an OTLP exporter, for a process that is frozen between invocations."""

import os
from collections.abc import Mapping
from typing import Final

from . import spans
from .instrumentor import FLUSH_TIMEOUT_SECONDS, OmniAgentInstrumentor
from .redaction import hide, is_secret_name

_TRACES_PATH: Final = "/v1/traces"
# Short, so that most spans are exported while the turn runs: the flush at its end delays the response of the handler.
_SCHEDULE_DELAY_MILLIS: Final = 500
# A header's value of this length is a key. A shorter one may be a word that every log line contains.
_MIN_KEY_LENGTH: Final = 16


def configure_tracing(
    endpoint: str,
    *,
    service_name: str,
    headers: Mapping[str, str] | str = "",
    capture_content: bool = False,
) -> OmniAgentInstrumentor:
    """Export spans to an OTLP/HTTP collector. Does nothing if tracing is already on.

    `endpoint` is the collector's base URL, as in OTEL_EXPORTER_OTLP_ENDPOINT, or the full URL of its traces path.
    `headers` are sent with every export, as a mapping or in the format of OTEL_EXPORTER_OTLP_HEADERS
    (`name=value,name=value`, URL-encoded); logs mask their values. OTEL_RESOURCE_ATTRIBUTES and OTEL_TRACES_SAMPLER
    apply.
    """
    instrumentor = OmniAgentInstrumentor()
    if instrumentor.is_instrumented:
        return instrumentor
    # Imported here to save cold-start time while tracing is off.
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

    from .id_generator import SystemIdGenerator
    from .recording import OpenTelemetryRecorder

    session = requests.Session()
    exporter = OTLPSpanExporter(
        traces_url(endpoint), headers=_headers(headers), timeout=FLUSH_TIMEOUT_SECONDS, session=session
    )
    # By default, a caller could leave its own requests out of the traces: `traceparent: …-00`.
    sampler = (
        None if "OTEL_TRACES_SAMPLER" in os.environ else ParentBased(ALWAYS_ON, remote_parent_not_sampled=ALWAYS_ON)
    )
    provider = TracerProvider(
        sampler, Resource.create({"service.name": service_name}), id_generator=SystemIdGenerator()
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_SCHEDULE_DELAY_MILLIS))
    spans.activate(
        OpenTelemetryRecorder(
            provider,
            capture_content=capture_content,
            on_shutdown=provider.shutdown,
            on_disconnect=session.close,
        )
    )
    return instrumentor


def _headers(headers: Mapping[str, str] | str) -> Mapping[str, str]:
    from opentelemetry.util.re import parse_env_headers

    if isinstance(headers, str):
        for entry in headers.split(","):
            hide(entry.strip())  # the parser logs an entry that it cannot read
        headers = parse_env_headers(headers, liberal=True)
    for name, value in headers.items():
        if is_secret_name(name) or len(value) >= _MIN_KEY_LENGTH:
            hide(value)
    return headers


def traces_url(endpoint: str) -> str:
    """Return the URL that receives the collector's traces."""
    base = endpoint.rstrip("/")
    return base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH
