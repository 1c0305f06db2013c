"""The one origin: what it forwards, what it serves itself, whom it refuses."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.util.types import AttributeValue

from local.emulator.http import ClientGone, Exchange, Server
from local.front import Front, LocalRequest
from local.processes import ServiceError
from local.traces import Traces
from omniagent.http.serving import ALLOWED_HEADERS
from omniagent.network import tls_context
from tests.fixtures.leaving import reading
from tests.security.routes import ROUTES

Handler = Callable[[Exchange], Awaitable[None]]
EVENT_STREAM = [("content-type", "text/event-stream")]


class Behind:
    """The server of a function; a test says what it does."""

    def __init__(self) -> None:
        self.handler: Handler = self._echo
        self.server = Server(self._handle)
        self.seen: list[Exchange] = []

    async def _handle(self, exchange: Exchange) -> None:
        await self.handler(exchange)

    async def _echo(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        await exchange.respond(200, [("set-cookie", "a=1"), ("set-cookie", "b=2")], await exchange.body(10_000))


@pytest.fixture
async def behind() -> AsyncIterator[Behind]:
    behind = Behind()
    await behind.server.start()
    yield behind
    await behind.server.close()


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "page"
    (page / "styles").mkdir(parents=True)
    (page / "index.html").write_text("<title>Page</title>")
    (page / "main.js").write_text("export {};")
    (page / "styles" / "page.css").write_text("body {}")
    (page / "data.unknown").write_text("?")
    (tmp_path / "secret.txt").write_text("secret")
    (page / "way-out").symlink_to(tmp_path)
    return page


async def info(_: LocalRequest) -> dict[str, str]:
    return {"model": "offline"}


@pytest.fixture
async def front(traces: Traces, page: Path, behind: Behind) -> AsyncIterator[Front]:
    front = Front(traces, playground=page)
    await front.start(0)
    url = f"http://{behind.server.address}"
    front.open_to({"chat": url, "sessions": url}, {"GET /local/info": info})
    yield front
    await front.close()


@pytest.fixture
async def http(front: Front) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=front.url, verify=tls_context(), timeout=60, trust_env=False) as client:
        yield client


async def raw(front: Front, target: str) -> tuple[int, bytes]:
    """Request a target that no client would write, and return status and body."""
    host, port = front.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


async def test_each_event_arrives_before_the_next_is_sent(http: httpx.AsyncClient, behind: Behind) -> None:
    arrived = asyncio.Queue[bytes]()

    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, EVENT_STREAM)
        for number in range(3):
            event = b"data: %d\n\n" % number
            await exchange.send(event)
            assert await arrived.get() == event
        await exchange.finish()

    behind.handler = answer
    async with http.stream("POST", "/chat", json={}) as response:
        async for chunk in response.aiter_raw():
            arrived.put_nowait(chunk)
    assert arrived.empty()


async def test_a_request_arrives_as_it_was_sent(front: Front, http: httpx.AsyncClient, behind: Behind) -> None:
    response = await http.patch("/sessions/s-1", content=b'{"name": "\xc3\xa4"}', headers={"x-user-id": "ada"})
    assert response.content == b'{"name": "\xc3\xa4"}'
    assert response.headers.get_list("set-cookie") == ["a=1", "b=2"]
    targets = ["/sessions/a%2Fb/../c%20d?x=%20+y&&z", "//chat", "//sessions/s-1"]
    for target in targets:
        await raw(front, target)
    patched, *others = behind.seen
    assert (patched.method, patched.header("x-user-id")) == ("PATCH", "ada")
    assert patched.header("host") == behind.server.address
    assert [exchange.target for exchange in others] == targets


async def test_every_path_of_the_functions_is_forwarded(http: httpx.AsyncClient, behind: Behind) -> None:
    paths = [route.at("s-1", "m-1") for route in ROUTES] + ["/sessions?limit=2", "/docs", "/openapi.json"]
    for path in paths:
        await http.get(path)
    assert [exchange.target for exchange in behind.seen] == paths


async def test_a_client_that_leaves_ends_the_connection_behind_and_is_no_error(
    http: httpx.AsyncClient, behind: Behind, caplog: pytest.LogCaptureFixture
) -> None:
    left = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, EVENT_STREAM)
        try:
            while True:
                await exchange.send(b": still here\n\n")
                await asyncio.sleep(0)
        except ClientGone:
            left.set()

    behind.handler = answer
    async with (
        http.stream("GET", "/chat/s-1/stream") as response,
        reading(response, response.aiter_raw()) as chunks,
    ):
        await anext(chunks)
    await left.wait()
    assert caplog.records == []


async def test_an_answer_that_breaks_off_is_not_taken_for_the_whole(http: httpx.AsyncClient, behind: Behind) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, EVENT_STREAM)
        await exchange.send(b"data: 0\n\n")
        exchange.abort()

    behind.handler = answer
    with pytest.raises(httpx.RemoteProtocolError):
        await http.post("/chat", json={})


async def test_a_function_that_is_gone_is_said(http: httpx.AsyncClient, behind: Behind) -> None:
    await behind.server.close()
    response = await http.get("/sessions")
    assert (response.status_code, response.headers["content-type"]) == (502, "application/problem+json")
    assert response.json()["detail"] == "The sessions function cannot be reached."


async def test_before_the_functions_are_there_the_front_says_so(traces: Traces, page: Path) -> None:
    front = Front(traces, playground=page)
    await front.start(0)
    async with httpx.AsyncClient(base_url=front.url, trust_env=False, timeout=60) as http:
        assert (await http.post("/chat", json={})).status_code == 503
        assert (await http.get("/")).status_code == 200
    await front.close()


async def test_a_port_in_use_is_said_in_one_sentence(front: Front, traces: Traces) -> None:
    port = httpx.URL(front.url).port or 0
    with pytest.raises(ServiceError, match=rf"^Port {port} is in use: choose another one, such as PORT={port + 1}\.$"):
        await Front(traces).start(port)


async def test_a_web_application_on_another_port_of_this_machine_may_call(http: httpx.AsyncClient) -> None:
    origin = {"origin": "http://localhost:3000"}
    asked = {"access-control-request-method": "PATCH", "access-control-request-headers": "content-type"}
    allowed = (await http.options("/sessions/s-1", headers={**origin, **asked})).headers
    assert allowed["access-control-allow-origin"] == "http://localhost:3000"
    assert "PATCH" in allowed["access-control-allow-methods"]
    names = allowed["access-control-allow-headers"].split(",")
    assert {*ALLOWED_HEADERS, "x-user-id"} <= set(names), "what a deployed stack allows, and the user's name"
    answered = (await http.patch("/sessions/s-1", json={}, headers=origin)).headers
    assert answered["access-control-allow-origin"] == "http://localhost:3000"
    assert "x-session-id" in answered["access-control-expose-headers"]


@pytest.mark.parametrize(
    ("path", "content_type", "content"),
    [
        ("/", "text/html; charset=utf-8", "<title>Page</title>"),
        ("/main.js?v=1", "text/javascript; charset=utf-8", "export {};"),
        ("/styles/page.css", "text/css; charset=utf-8", "body {}"),
        ("/data.unknown", "application/octet-stream", "?"),
    ],
)
async def test_the_page_is_served_and_never_kept(
    path: str, content_type: str, content: str, http: httpx.AsyncClient
) -> None:
    response = await http.get(path)
    assert (response.status_code, response.text) == (200, content)
    assert response.headers["content-type"] == content_type
    assert response.headers["cache-control"] == "no-store"
    assert "script-src 'self'" in response.headers["content-security-policy"]


async def test_nothing_outside_of_the_pages_folder_is_served(front: Front) -> None:
    ways_out = ("/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "//secret.txt", "/way-out/secret.txt")
    for target in (*ways_out, "/%00", "/none"):
        assert (target, await raw(front, target)) == (target, (404, b"Not found.\n"))


class Turn:
    """A request of a turn, whose spans are sent by the real exporter."""

    def __init__(self, front: Front, **attributes: AttributeValue) -> None:
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{front.url}/v1/traces")))
        self._tracer = self._provider.get_tracer("test")
        self._common: dict[str, AttributeValue] = {"session.id": "s-1", "omniagent.turn_number": 1}
        own = {**self._common, "openinference.span.kind": "AGENT", **attributes}
        self._root = self._tracer.start_span("turn", attributes=own)
        self._context = trace.set_span_in_context(self._root)

    async def add(self, name: str, kind: trace.SpanKind = trace.SpanKind.INTERNAL, **attributes: str) -> None:
        named = {key.replace("__", "."): value for key, value in attributes.items()}
        span = self._tracer.start_span(name, self._context, kind, attributes={**self._common, **named})
        await asyncio.to_thread(span.end)

    async def end(self) -> None:
        self._root.set_status(trace.StatusCode.ERROR)
        self._root.add_event("omniagent.state_change")
        await asyncio.to_thread(self._root.end)
        await asyncio.to_thread(self._provider.shutdown)


async def test_the_spans_of_a_turns_last_answer_are_told(front: Front, http: httpx.AsyncClient) -> None:
    for _ in ("first", "answered again"):
        turn = Turn(front)
        await turn.add("llm", openinference__span__kind="LLM", llm__model_name="m")
        await turn.add("mongodb.finish_turn", trace.SpanKind.CLIENT, db__system__name="mongodb")
        await turn.end()
    await Turn(front, **{"omniagent.turn_number": 2}).end()
    root, llm, stored = (await http.get("/local/traces?session_id=s-1&turn=1")).json()["spans"]
    assert (root["name"], root["kind"], root["parent_id"], root["status"]) == ("turn", "AGENT", None, "error")
    assert (llm["name"], llm["kind"], llm["parent_id"], llm["status"]) == ("llm", "LLM", root["id"], "unset")
    assert llm["attributes"] == {"llm.model_name": "m"}
    assert (stored["name"], stored["kind"]) == ("mongodb.finish_turn", "DB")
    assert stored["attributes"] == {"db.system.name": "mongodb"}
    assert root["events"][0]["name"] == "omniagent.state_change"
    assert root["start_ms"] <= llm["start_ms"] <= stored["start_ms"]
    assert root["duration_ms"] >= llm["duration_ms"]


async def test_what_came_of_a_turn_that_waited_is_waited_for(front: Front, traces: Traces) -> None:
    await Turn(front, **{"omniagent.turn_status": "waiting"}).end()
    told = asyncio.create_task(traces.of_ended_turn("s-1", 1, seconds=60))
    await asyncio.sleep(0)
    assert not told.done()
    await Turn(front).end()
    assert [span.attributes.get("omniagent.turn_status") for span in await told] == ["waiting", None]


async def test_a_page_is_told_of_what_others_do_to_the_chats_of_its_user(
    http: httpx.AsyncClient, behind: Behind
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, [("x-session-id", "talk")] if exchange.path == "/chat" else [])

    behind.handler = answer
    ada = {"x-user-id": "ada"}
    async with http.stream("GET", "/local/activity?client=page", headers=ada) as events:
        lines = events.aiter_lines()
        assert await anext(lines) == ": listening"
        await http.post("/chat", json={}, headers={"x-user-id": "bob"})
        await http.post("/chat", json={}, headers={**ada, "x-client-id": "page"})
        await http.get("/sessions/read", headers=ada)
        await http.patch("/sessions/renamed", json={}, headers=ada)
        await http.post("/chat", json={}, headers={**ada, "x-client-id": "other"})
        told = [line async for line in _first(lines, 8)]
    sessions = [json.loads(line.removeprefix("data: "))["session"] for line in told if line]
    assert sessions == ["renamed", "renamed", "talk", "talk"]  # each when its answer begins and when it ends


async def _first(lines: AsyncIterator[str], count: int) -> AsyncIterator[str]:
    for _ in range(count):
        yield await anext(lines)
