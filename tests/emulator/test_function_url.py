"""Function URLs: requests become events, answers become responses."""

import base64

import httpx
import pytest

from local.emulator import Emulator
from local.template import Cors, FunctionUrl
from tests.emulator.conftest import Start, toy
from tests.fixtures.leaving import reading
from tests.fixtures.meetings import Meeting

SIGNED = {
    "authorization": "AWS4-HMAC-SHA256 Credential=alice/20260101/us-east-1/lambda/aws4_request, "
    "SignedHeaders=host, Signature=00"
}
IAM = FunctionUrl(auth_type="AWS_IAM")


async def test_status_headers_and_cookies_of_a_stream_are_the_functions(
    streaming: Emulator, http: httpx.AsyncClient
) -> None:
    response = await http.get(streaming.url_of("stream") + "/?status=201")
    headers = response.headers
    assert (response.status_code, headers["content-type"], headers["x-session-id"]) == (201, "text/event-stream", "s-1")
    assert headers.get_list("set-cookie") == ["a=1; Path=/", "b=2"]


async def test_a_stream_that_fails_is_broken_off_and_the_next_one_works(
    streaming: Emulator, http: httpx.AsyncClient
) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await http.get(streaming.url_of("stream") + "/?fail=1")
    assert (await http.get(streaming.url_of("stream"))).text == "data: 0\n\ndata: 1\n\ndata: 2\n\n"


async def test_a_reader_that_leaves_does_not_stop_the_function(
    start: Start, http: httpx.AsyncClient, gate: Meeting
) -> None:
    emulator = await start(toy("stream"))
    query = "/?events=40&padding=1048576&after=1"
    async with (
        http.stream("GET", emulator.url_of("stream") + query) as response,
        reading(response, response.aiter_bytes()) as chunks,
    ):
        await anext(chunks)
    message, let_on = await gate.arrival()
    assert message == "finished"
    let_on()
    await emulator.settled()
    assert len(emulator.processes("stream")) == 1


async def test_a_request_becomes_an_event_of_payload_format_2(plain: Emulator, http: httpx.AsyncClient) -> None:
    response = await http.request(
        "PUT",
        plain.url_of("plain") + "/a%20b/c?x=1&y=%20&x=2",
        headers=[("X-Twice", "1"), ("X-Twice", "2"), ("Cookie", "a=1; b=2"), ("content-type", "application/json")],
        content='{"text": "é"}',
    )
    event = response.json()["event"]
    context = event.pop("requestContext")
    headers = event.pop("headers")
    assert event == {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/a%20b/c",
        "rawQueryString": "x=1&y=%20&x=2",
        "queryStringParameters": {"x": "1,2", "y": " "},
        "cookies": ["a=1", "b=2"],
        "body": '{"text": "é"}',
        "isBase64Encoded": False,
    }
    assert (headers["x-twice"], headers["x-forwarded-for"]) == ("1,2", "127.0.0.1")
    assert headers["host"] == context["domainName"]
    assert (context["http"]["method"], context["http"]["path"]) == ("PUT", "/a%20b/c")
    assert context["accountId"] == "anonymous"
    assert "authorizer" not in context


async def test_a_binary_body_comes_in_base64(plain: Emulator, http: httpx.AsyncClient) -> None:
    response = await http.post(plain.url_of("plain"), content=b"\x00\xff")
    assert response.json()["received"] == "00ff"


@pytest.mark.parametrize(
    ("answer", "status", "headers", "body"),
    [
        ({"any": "thing"}, 200, {"content-type": "application/json"}, b'{"any": "thing"}'),
        ("text", 200, {"content-type": "application/json"}, b'"text"'),
        (
            {"statusCode": 201, "headers": {"X-A": "b", "Content-Type": "text/plain"}, "body": "made"},
            201,
            {"x-a": "b", "content-type": "text/plain"},
            b"made",
        ),
        (
            {"statusCode": 200, "isBase64Encoded": True, "body": base64.b64encode(b"\x00\xff").decode()},
            200,
            {},
            b"\x00\xff",
        ),
        ({"statusCode": 204}, 204, {}, b""),
        ({"statusCode": "often"}, 502, {}, b"Internal Server Error"),
        ({"statusCode": 200, "isBase64Encoded": True, "body": "?"}, 502, {}, b"Internal Server Error"),
    ],
)
async def test_a_result_becomes_the_response_it_stands_for(
    *,
    plain: Emulator,
    http: httpx.AsyncClient,
    answer: object,
    status: int,
    headers: dict[str, str],
    body: bytes,
) -> None:
    response = await http.post(plain.url_of("plain"), json={"do": "answer", "answer": answer})
    assert (response.status_code, response.content) == (status, body)
    assert headers.items() <= dict(response.headers).items()


@pytest.mark.parametrize("order", ["fail", "exit", "large"])
async def test_a_function_that_fails_is_a_502_that_tells_nothing(
    plain: Emulator, http: httpx.AsyncClient, order: str
) -> None:
    response = await http.post(plain.url_of("plain"), json={"do": order})
    assert (response.status_code, response.text) == (502, "Internal Server Error")
    assert (await http.get(plain.url_of("plain"))).status_code == 200


async def test_a_function_that_fails_at_import_is_a_502_and_says_why_in_its_log(
    start: Start, http: httpx.AsyncClient
) -> None:
    emulator = await start(toy("broken"))
    assert (await http.get(emulator.url_of("broken"))).status_code == 502
    assert any("broken at import" in line for line in emulator.logs("broken"))
    assert emulator.processes("broken") == []


async def test_an_iam_url_takes_signed_requests_and_presigned_addresses_only(
    start: Start, http: httpx.AsyncClient
) -> None:
    url = (await start(toy("plain", url=IAM))).url_of("plain")
    refused = await http.get(url, headers={"authorization": "Bearer token"})
    assert (refused.status_code, refused.json()) == (403, {"Message": "Forbidden"})
    signed = (await http.get(url, headers=SIGNED)).json()["event"]["requestContext"]
    iam = signed["authorizer"]["iam"]
    assert (signed["accountId"], iam["accessKey"]) == ("123456789012", "alice")
    assert iam["userArn"] == "arn:aws:iam::123456789012:user/alice"
    query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=bob%2F20260101&X-Amz-Signature=00"
    presigned = (await http.get(f"{url}/?{query}")).json()["event"]["requestContext"]
    assert presigned["authorizer"]["iam"]["accessKey"] == "bob"


CORS = Cors(
    allow_origins=("https://app.example",),
    allow_methods=("GET", "POST"),
    allow_headers=("content-type",),
    expose_headers=("x-session-id",),
    max_age=600,
)
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}


async def test_a_preflight_is_answered_without_the_function_or_a_signature(
    start: Start, http: httpx.AsyncClient
) -> None:
    emulator = await start(toy("plain", url=FunctionUrl(auth_type="AWS_IAM", cors=CORS)))
    url = emulator.url_of("plain")
    response = await http.options(url, headers={"origin": "https://app.example", **PREFLIGHT})
    expected = {"origin": "https://app.example", "methods": "GET,POST", "headers": "content-type"}
    found = {name: response.headers[f"access-control-allow-{name}"] for name in expected}
    assert (response.status_code, found) == (200, expected)
    assert response.headers["access-control-max-age"] == "600"
    other = await http.options(url, headers={"origin": "https://evil.example", **PREFLIGHT})
    assert not [name for name in other.headers if name.startswith("access-control-")]
    assert emulator.processes("plain") == []


async def test_cross_origin_headers_are_the_urls_and_not_the_functions(start: Start, http: httpx.AsyncClient) -> None:
    emulator = await start(toy("plain", url=FunctionUrl(cors=CORS)))
    answer = {"statusCode": 200, "headers": {"Access-Control-Allow-Origin": "*"}, "body": "{}"}
    order = {"do": "answer", "answer": answer}
    url = emulator.url_of("plain")
    allowed = await http.post(url, json=order, headers={"origin": "https://app.example"})
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    assert allowed.headers["access-control-expose-headers"] == "x-session-id"
    other = await http.post(url, json=order, headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
