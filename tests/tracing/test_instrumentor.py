"""Turning tracing on and off, and what leaves the process."""

import os
import random
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import omniagent
from omniagent.tracing import (
    OmniAgentInstrumentor,
    Span,
    bind_context,
    current_span,
    current_trace_id,
    flush_traces,
    trace_operation,
    trace_request,
    turn_state,
)
from omniagent.tracing.export import configure_tracing
from omniagent.tracing.redaction import redact_text
from tests.fixtures.http_server import HttpServer, Received

from .conftest import Recorded

LAYER = Path(__file__).parents[2] / "layers" / "core"


class Collector(HttpServer):
    """An OTLP/HTTP collector. It answers once `answering` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, str | None, ExportTraceServiceRequest]] = []
        self.answering = threading.Event()
        self.answering.set()

    def answer(self, request: Received) -> tuple[int, bytes]:
        self.answering.wait(timeout=60)
        export = ExportTraceServiceRequest.FromString(request.body)
        self.requests.append((request.path, request.headers.get("x-team"), export))
        return 200, b""

    @property
    def span_names(self) -> list[str]:
        resources = [resource for _, _, request in self.requests for resource in request.resource_spans]
        return [span.name for resource in resources for scope in resource.scope_spans for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running
        running.answering.set()
        OmniAgentInstrumentor().uninstrument()


def run_python(code: str, *path: Path, program: str = sys.executable) -> str:
    """Run code in a fresh process and return what it printed."""
    command = [program, *([sys.executable] if program != sys.executable else []), "-c", code]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (LAYER, *path)))}
    finished = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_opentelemetry_is_imported_by_an_instrumentor_and_its_sdk_by_nobody() -> None:
    code = """
import asyncio, sys
from omniagent.tracing import *
with bind_context(session_id="s"), trace_operation("work", attributes={"a": 1}) as span:
    span.set_content(input="x")
    turn_state("planned", "running")
assert current_trace_id() is None
assert asyncio.run(flush_traces()) and OmniAgentInstrumentor().flush()
OmniAgentInstrumentor().uninstrument()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
OmniAgentInstrumentor().instrument()
print([name for name in sys.modules if name.startswith("opentelemetry.sdk")])
"""
    assert run_python(code) == "[]"


@pytest.mark.parametrize(("value", "is_recorded"), [("true", True), ("ON", True), ("false", False), ("", False)])
def test_without_an_argument_the_environment_says_whether_content_is_recorded(
    value: str, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE_CONTENT", value)
    spans = Recorded()
    instrumentor = OmniAgentInstrumentor()
    instrumentor.instrument(spans.provider)  # as `opentelemetry-instrument` calls it
    with trace_operation("work") as span:
        span.set_content(input="what was said")
    instrumentor.uninstrument()
    assert ("what was said" in spans.everything()) is is_recorded


async def test_while_tracing_is_off_every_operation_is_the_same_span_that_does_nothing() -> None:
    assert not OmniAgentInstrumentor().is_instrumented
    with bind_context(session_id="s"), trace_operation("work") as span:
        assert type(span) is Span
        assert span is current_span() is trace_operation("other")
        assert not span.captures_content
        assert current_trace_id() is None
        span.set("a", 1)
        span.error(ValueError("no"))
        turn_state("planned", "running")
    assert await flush_traces()


def test_spans_are_recorded_from_instrument_to_uninstrument(recorded: Recorded) -> None:
    with trace_operation("on"):
        pass
    OmniAgentInstrumentor().uninstrument()
    assert not OmniAgentInstrumentor().is_instrumented
    with trace_operation("off"):
        pass
    assert recorded.names == ["on"]


def test_a_second_instrument_is_ignored_and_logged(recorded: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    other = Recorded()
    OmniAgentInstrumentor().instrument(other.provider)
    with trace_operation("work"):
        pass
    assert (recorded.names, other.names) == (["work"], [])
    assert "second instrument() is ignored" in caplog.text


def test_the_command_opentelemetry_instrument_finds_it_and_turns_it_on(tmp_path: Path) -> None:
    project = tomllib.loads((LAYER.parents[1] / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / f"{project['name']}-{omniagent.__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {omniagent.__version__}\n"
    )
    entry_points = project["entry-points"]["opentelemetry_instrumentor"]
    (metadata / "entry_points.txt").write_text(
        "[opentelemetry_instrumentor]\n" + "".join(f"{name} = {value}\n" for name, value in entry_points.items())
    )
    code = """
import sys
started = "omniagent.tracing" in sys.modules
from omniagent.tracing import OmniAgentInstrumentor
print(started, OmniAgentInstrumentor().is_instrumented)
"""
    program = str(Path(sys.executable).with_name("opentelemetry-instrument"))
    assert run_python(code, tmp_path, program=program) == "True True"


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
async def test_a_flush_brings_every_ended_span_to_the_collector(collector: Collector, path: str) -> None:
    configure_tracing(collector.url + path, service_name="chat", headers={"x-team": "blue"})
    with trace_operation("turn"), trace_operation("model"):
        pass
    assert await flush_traces(30)
    assert sorted(collector.span_names) == ["model", "turn"]
    ((where, team, request),) = collector.requests
    assert (where, team) == ("/v1/traces", "blue")
    resource = {item.key: item.value.string_value for item in request.resource_spans[0].resource.attributes}
    assert resource["service.name"] == "chat"


async def test_a_caller_cannot_leave_its_requests_out_of_the_traces(collector: Collector) -> None:
    configure_tracing(collector.url, service_name="chat")
    with trace_request("GET", {"traceparent": f"00-{'a' * 32}-{'b' * 16}-00"}), trace_operation("work"):
        pass
    assert await flush_traces(30)
    assert sorted(collector.span_names) == ["GET", "work"]


def test_the_functions_trace_with_the_endpoint_the_headers_and_the_content_of_their_settings(
    collector: Collector,
) -> None:
    code = f"""
import asyncio
from omniagent import Agent, Project, trace_operation
from omniagent.app.on_lambda import get_application
from omniagent.tracing import flush_traces
settings = {{"otel_exporter_otlp_endpoint": "{collector.url}", "otel_exporter_otlp_headers": "x-team=dark%20green"}}
get_application(Project(agent=Agent("helper", ""), settings={{**settings, "trace_content": True}}))
with trace_operation("turn") as span:
    print(span.captures_content)
asyncio.run(flush_traces(30))
"""
    assert run_python(code) == "True"
    assert [(team, collector.span_names) for _, team, _ in collector.requests] == [("dark green", ["turn"])]


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        ("x-honeycomb-team=q7w8e9r0t1z2u3i4o5", "q7w8e9r0t1z2u3i4o5"),
        ("api-key=q7w8e9r0", "q7w8e9r0"),
        ("api-key=q7w8%2Fe9r0t1", "q7w8/e9r0t1"),
        ("q7w8e9r0t1z2u3i4o5", "q7w8e9r0t1z2u3i4o5"),
        ({"authorization": "Custom q7w8e9r0"}, "Custom q7w8e9r0"),
    ],
)
def test_the_values_of_headers_are_masked_in_logs(
    collector: Collector, headers: str | dict[str, str], secret: str
) -> None:
    configure_tracing(collector.url, service_name="chat", headers=headers)
    assert secret not in redact_text(f"export failed: {secret}")
    assert redact_text("omniagent") == "omniagent"


def test_ids_do_not_repeat_when_random_does(collector: Collector) -> None:
    configure_tracing(collector.url, service_name="chat")
    state = random.getstate()
    ids = set()
    for _ in range(3):  # each round starts from the same snapshot
        random.setstate(state)
        with trace_operation("work"):
            ids.add(current_trace_id())
    assert len(ids) == 3


async def test_a_flush_does_not_wait_longer_for_a_collector_than_allowed(collector: Collector) -> None:
    configure_tracing(collector.url, service_name="chat")
    collector.answering.clear()
    with trace_operation("work"):
        pass
    assert not await flush_traces(0.05)
    assert not await flush_traces(0.05)
    assert [thread.name for thread in threading.enumerate()].count("omniagent-flush_0") == 1
    collector.answering.set()
    assert await flush_traces(30)
    assert "work" in collector.span_names


def test_uninstrument_exports_what_is_left(collector: Collector) -> None:
    configure_tracing(collector.url, service_name="chat")
    with trace_operation("work"):
        pass
    OmniAgentInstrumentor().uninstrument()
    assert collector.span_names == ["work"]
