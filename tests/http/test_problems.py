"""Errors as the public sees them, and bodies that are refused before anything happens."""

import gzip
import json
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from omniagent import errors
from omniagent.http.bodies import MAX_BODY_DEPTH, read_json
from omniagent.http.sessions_app import sessions_app
from omniagent.settings import Settings
from omniagent.tracing.spans import bound_fields
from tests.fixtures.problems import check_problem

Json = dict[str, Any]
SECRET = "mongodb://ada:hunter22@db.internal"
LIMIT = 1_000


@pytest.fixture(scope="module")
def all_recovered() -> list[BaseException]:
    return []


@pytest.fixture
def recovered(all_recovered: list[BaseException]) -> list[BaseException]:
    """What the app has recovered from in this test."""
    all_recovered.clear()
    return all_recovered


@pytest.fixture(scope="module")
def app(all_recovered: list[BaseException]) -> ASGIApp:
    """The sessions app with routes that fail, called as Lambda's bridge calls it."""

    async def recover(error: BaseException) -> None:
        all_recovered.append(error)
        raise RuntimeError("no recovery")

    application: Any = SimpleNamespace(settings=Settings(), local=False, recover=recover)
    app = sessions_app(application)

    @app.get("/raise/{name}")
    async def fail(name: str) -> None:
        if name in vars(errors):
            raise getattr(errors, name)(SECRET if name not in ("NotFound", "Unauthenticated") else "")
        raise HTTPException(int(name)) if name.isdecimal() else RuntimeError(SECRET)

    @app.get("/limited")
    async def limited(limit: int) -> None: ...

    @app.delete("/limited")
    async def unlimited() -> None: ...

    @app.get("/late")
    async def late() -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            yield b"begun"
            raise RuntimeError(SECRET)

        return StreamingResponse(body())

    @app.post("/echo")
    async def echo(request: Request) -> Any:
        return await read_json(request, limit=LIMIT)

    async def on_lambda(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "aws.context": SimpleNamespace(aws_request_id="request-1")}, receive, send)

    return on_lambda


@pytest.fixture
async def client(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield client


ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.OmniAgentError) and not issubclass(kind, errors.RequestError)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
async def test_an_error_of_ours_shows_its_fixed_text_and_logs_the_cause(
    client: httpx.AsyncClient,
    recovered: list[BaseException],
    kind: type[errors.OmniAgentError],
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = await client.get(f"/raise/{kind.__name__}")
    assert check_problem(response, kind.status, kind.code)["detail"] == kind.public
    assert SECRET not in response.text
    assert SECRET in caplog.text
    assert ("retry-after" in response.headers) is (kind.retry_after is not None)
    assert [type(error) for error in recovered] == [kind]


async def test_any_other_exception_is_a_500_that_tells_nothing(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    response = await client.get("/raise/anything")
    found = check_problem(response, 500, "internal_error")
    assert found["request_id"] == "request-1", "Lambda's own"
    assert SECRET not in response.text
    assert [record.levelname for record in caplog.records if SECRET in (record.exc_text or "")] == ["ERROR"]


@pytest.mark.parametrize(
    ("name", "status", "header"),
    [("NotFound", 404, {}), ("TurnInProgress", 409, {"retry-after": "1"}), ("TooManyTurns", 429, {"retry-after": "2"})],
)
async def test_a_refusal_tells_the_caller_what_to_change(
    client: httpx.AsyncClient, recovered: list[BaseException], name: str, status: int, header: dict[str, str]
) -> None:
    response = await client.get(f"/raise/{name}")
    assert check_problem(response)["status"] == status
    assert header.items() <= dict(response.headers).items()
    assert recovered == []


async def test_the_frameworks_own_refusals_are_problems_too(client: httpx.AsyncClient) -> None:
    assert check_problem(await client.get("/nowhere"))["code"] == "not_found"
    gone = check_problem(await client.get("/raise/410"))
    assert (gone["status"], gone["code"], gone["title"], gone["detail"]) == (410, "gone", "Gone", "Gone")
    wrong = await client.delete("/echo")
    assert (check_problem(wrong)["code"], wrong.headers["allow"]) == ("method_not_allowed", "POST")
    twice = await client.put("/limited")
    assert twice.headers["allow"] == "DELETE, GET"
    invalid = check_problem(await client.get("/limited", params={"limit": "<script>"}))
    assert (invalid["status"], invalid["code"]) == (422, "invalid_request")
    assert invalid["detail"].startswith("query.limit: ")
    assert "script" not in invalid["detail"]


async def test_a_failure_after_the_status_line_is_left_to_the_runtime(client: httpx.AsyncClient) -> None:
    with pytest.raises(RuntimeError, match="hunter22"):
        await client.get("/late")


async def test_every_line_of_a_request_carries_its_id(client: httpx.AsyncClient) -> None:
    seen: list[object] = []

    def watch(_: logging.LogRecord) -> bool:
        seen.append(bound_fields().get("request_id"))
        return True

    logger = logging.getLogger("omniagent.http.serving")
    logger.addFilter(watch)
    await client.get("/raise/StorageUnavailable")
    logger.removeFilter(watch)
    assert (set(seen), dict(bound_fields())) == ({"request-1"}, {})


async def post(client: httpx.AsyncClient, body: bytes, kind: str | None = "application/json") -> httpx.Response:
    return await client.post("/echo", content=body, headers={} if kind is None else {"content-type": kind})


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [1, -2.5, "x", null, true]}',
        b'"\\ud83d\\ude00"',
        '"äöü 🙂"'.encode(),
        b"[" * MAX_BODY_DEPTH + b"]" * MAX_BODY_DEPTH,
        b'"' + b"x" * (LIMIT - 2) + b'"',
    ],
)
async def test_json_within_the_limits_is_read(client: httpx.AsyncClient, body: bytes) -> None:
    response = await post(client, body, "application/json; charset=utf-8")
    assert (response.status_code, response.json()) == (200, json.loads(body))


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "not valid JSON"),
        (b"{not json", "not valid JSON"),
        (b'{"a": 1} {"b": 2}', "not valid JSON"),
        (b'\xef\xbb\xbf{"a": 1}', "not valid JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b'{"a": NaN}', "NaN"),
        (b"-Infinity", "-Infinity"),
        (b"[" * (MAX_BODY_DEPTH + 1) + b"]" * (MAX_BODY_DEPTH + 1), "nested"),
        (b"[" * 990, ""),
        (b'{"a":' * 150 + b"1" + b"}" * 150, "nested"),
    ],
)
async def test_what_is_not_json_is_refused_with_the_reason(client: httpx.AsyncClient, body: bytes, detail: str) -> None:
    response = await post(client, body)
    assert detail in check_problem(response, 400, "malformed_request")["detail"]


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
        "application/json, text/html",
        "multipart/form-data",
    ],
)
async def test_another_content_type_is_refused(client: httpx.AsyncClient, kind: str) -> None:
    assert check_problem(await post(client, b"{}", kind))["status"] == 415


async def test_a_compressed_body_is_refused_with_the_reason(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = await client.post("/echo", content=gzip.compress(b"{}"), headers=headers)
    assert (check_problem(response)["status"], "content encoding" in check_problem(response)["detail"]) == (415, True)


async def test_a_missing_content_type_means_json(client: httpx.AsyncClient) -> None:
    for missing in (None, ""):
        assert (await post(client, b'{"a": 1}', missing)).json() == {"a": 1}
    assert check_problem(await post(client, b"a=1", None))["status"] == 400


@pytest.mark.parametrize("path", ["//echo", "///echo"])
async def test_the_trailing_slash_of_a_function_url_is_forgiven(client: httpx.AsyncClient, path: str) -> None:
    response = await client.post(f"http://test{path}", json={"a": 1})
    assert (response.status_code, response.json()) == (200, {"a": 1})
