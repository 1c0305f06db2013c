"""`configure_tracing`: the SDK with an OTLP exporter, for a process that is frozen between invocations.

Imported only when tracing is turned on: it imports the SDK.
"""

import os
import secrets
from collections.abc import Mapping
from typing import Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.util.re import parse_env_headers

from . import FLUSH_TIMEOUT_SECONDS, activate, active_recorder
from .recording import OpenTelemetryRecorder
from .redaction import hide, is_secret_name

_TRACES_PATH: Final = "/v1/traces"
# Short, so that most spans are exported while the turn runs: the flush at its end delays the response of the handler.
_SCHEDULE_DELAY_MILLIS: Final = 500
# A header's value of this length is a key. A shorter one may be a word that every log line contains.
_MIN_KEY_LENGTH: Final = 16


class SystemIdGenerator(IdGenerator):
    """Generates ids that no clone of this process repeats.

    The SDK's own generator uses `random`, whose state is part of a SnapStart snapshot: all processes restored from one
    would generate the same ids.
    """

    def generate_span_id(self) -> int:
        return secrets.randbits(64) or 1  # zero marks an invalid id

    def generate_trace_id(self) -> int:
        return secrets.randbits(128) or 1

    def is_trace_id_random(self) -> bool:
        return True


def configure_tracing(
    endpoint: str, *, service_name: str, headers: Mapping[str, str] | str = "", capture_content: bool = False
) -> None:
    """Export spans to an OTLP/HTTP collector. Does nothing if tracing is already on.

    `endpoint` is the collector's base URL, as in OTEL_EXPORTER_OTLP_ENDPOINT, or the full URL of its traces path.
    `headers` are sent with every export, as a mapping or in the format of OTEL_EXPORTER_OTLP_HEADERS
    (`name=value,name=value`, URL-encoded); logs mask their values. OTEL_RESOURCE_ATTRIBUTES and OTEL_TRACES_SAMPLER
    apply.
    """
    if active_recorder() is not None:
        return
    session = requests.Session()
    base = endpoint.rstrip("/")
    exporter = OTLPSpanExporter(
        base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH,
        headers=_headers(headers),
        timeout=FLUSH_TIMEOUT_SECONDS,
        session=session,
    )
    # By default, a caller could leave its own requests out of the traces: `traceparent: …-00`.
    sampler = (
        None if "OTEL_TRACES_SAMPLER" in os.environ else ParentBased(ALWAYS_ON, remote_parent_not_sampled=ALWAYS_ON)
    )
    provider = TracerProvider(
        sampler, Resource.create({"service.name": service_name}), id_generator=SystemIdGenerator()
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_SCHEDULE_DELAY_MILLIS))
    recorder = OpenTelemetryRecorder(
        provider, capture_content=capture_content, shutdown=provider.shutdown, disconnect=session.close
    )
    activate(recorder)


def _headers(headers: Mapping[str, str] | str) -> Mapping[str, str]:
    if isinstance(headers, str):
        for entry in headers.split(","):
            hide(entry.strip())  # the parser logs an entry that it cannot read
        headers = parse_env_headers(headers, liberal=True)
    for name, value in headers.items():
        if is_secret_name(name) or len(value) >= _MIN_KEY_LENGTH:
            hide(value)
    return headers
