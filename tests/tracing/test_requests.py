"""The span of a request: the root of one trace, or a part of the caller's."""

import httpx
import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import StatusCode
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from omniagent.http.auth import authenticator, find_caller
from omniagent.http.serving import Boundary
from omniagent.session.ids import user_id_of
from omniagent.settings import Settings
from omniagent.tracing import SpanKind, trace_operation, trace_request
from omniagent.tracing.spans import bound_fields

from .conftest import Recorded

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


def trace_id(recorded: Recorded, name: str) -> str:
    context = recorded[name].context
    assert context is not None
    return f"{context.trace_id:032x}"


def test_the_callers_trace_is_continued(recorded: Recorded) -> None:
    with trace_request("GET", {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}), trace_operation("work"):
        pass
    request = recorded["GET"]
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == PARENT
    assert (trace_id(recorded, "GET"), trace_id(recorded, "work")) == (TRACE, TRACE)
    assert request.context is not None
    assert request.context.trace_state.get("vendor") == "1"


@pytest.mark.parametrize(
    "headers",
    [{"traceparent": "nonsense"}, {"traceparent": f"00-{'0' * 32}-{PARENT}-01"}, {"tracestate": "vendor=1"}],
)
def test_a_malformed_traceparent_is_ignored(recorded: Recorded, headers: dict[str, str]) -> None:
    with trace_request("GET", headers):
        pass
    assert recorded["GET"].parent is None


async def respond(request: Request) -> Response:
    if request.path_params["name"] == "broken":
        raise RuntimeError("hush")
    with trace_operation("work"):
        return PlainTextResponse("ok")


@pytest.fixture
def client() -> httpx.AsyncClient:
    app = Boundary(Starlette(routes=[Route("/things/{name}", respond)]))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def test_the_apps_request_span_is_named_by_its_route_and_carries_the_status(
    recorded: Recorded, client: httpx.AsyncClient
) -> None:
    await client.get("/things/mine", headers={"traceparent": TRACEPARENT})
    name = "GET /things/{name}"
    assert recorded.parent("work") == name
    assert trace_id(recorded, name) == TRACE
    assert recorded.attributes(name)["http.response.status_code"] == 200
    await client.get("/made/up")
    assert recorded.attributes("GET")["http.response.status_code"] == 404


async def test_a_failed_request_is_an_error_and_its_spans_are_still_flushed(
    recorded: Recorded, client: httpx.AsyncClient
) -> None:
    flushed: list[str] = []

    class Keep(SpanProcessor):
        def force_flush(self, timeout_millis: int = 0) -> bool:
            flushed.extend(recorded.names)
            return True

    recorded.provider.add_span_processor(Keep())
    with pytest.raises(RuntimeError):
        await client.get("/things/broken")
    assert recorded["GET /things/{name}"].status.status_code is StatusCode.ERROR
    assert flushed == ["GET /things/{name}"]


async def test_the_callers_hash_and_a_sessions_id_are_on_every_line_and_span_of_a_request(recorded: Recorded) -> None:
    fields: list[dict[str, object]] = []

    async def read(request: Request) -> Response:
        await find_caller(request)
        fields.append(dict(bound_fields()))
        with trace_operation("mongodb.find", kind=SpanKind.DB):
            return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/sessions/{session_id}", read)])
    app.state.authenticate, app.state.auth_mode = authenticator(Settings(auth_mode="none"), local=True), "none"
    transport = httpx.ASGITransport(Boundary(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for session_id in ("demo", "not%20an%20id"):
            await http.get(f"/sessions/{session_id}", headers={"x-user-id": "ada"})
    user = user_id_of("local:ada")
    assert [line["user_id"] for line in fields] == [user] * 2
    assert not bound_fields()
    for name in ("GET /sessions/{session_id}", "mongodb.find"):
        assert recorded.values(name, "session.id") == ["demo", None]
        assert recorded.values(name, "user.id") == [user] * 2
