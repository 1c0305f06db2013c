"""Whatever a caller puts into a request, the handlers make a response of the event: never a function error."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.function_url import SIGNER, SOURCE, Json, invoke
from tests.fixtures.problems import check_problem
from tests.fixtures.world import World
from tests.security.fuzz import BOUNDED, LOADED
from tests.security.routes import ROUTES

# Text as JSON can carry it; what HTTP itself forbids is left in, for a proxy may be careless.
WILD = st.text(max_size=30) | LOADED | st.just("\ud800")
NAMES = st.sampled_from(
    [
        *("host", "content-type", "content-length", "transfer-encoding", "authorization", "cookie", "expect", "range"),
        *("x-user-id", "x-user-category", "x-forwarded-port", "x-forwarded-proto", "x-forwarded-for", "upgrade"),
    ]
)
PATHS = st.sampled_from([route.at("s", "m") for route in ROUTES]) | st.text(max_size=30).map(lambda text: f"/{text}")
BODIES = (
    st.none()
    | WILD.map(lambda text: (text, False))
    | st.binary(max_size=30).map(lambda body: (base64.b64encode(body).decode(), True))
    | WILD.map(lambda text: (text, True))
)


METHODS = st.sampled_from(["GET", "POST", "PATCH", "DELETE", "OPTIONS", "HEAD", "PUT", "TRACE", "get"])
HEADERS = st.dictionaries(NAMES | st.text(max_size=10), WILD, max_size=6)


@st.composite
def url_events(draw: st.DrawFn) -> Json:
    """Payload format 2.0."""
    path, query = draw(PATHS), draw(WILD)
    http = {
        "method": draw(METHODS),
        "path": path,
        "protocol": "HTTP/1.1",
        "sourceIp": draw(st.just(SOURCE) | WILD),
        "userAgent": draw(WILD),
    }
    event: Json = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": draw(HEADERS),
        "requestContext": {"domainName": draw(WILD), "http": http, "authorizer": {"iam": {"userArn": SIGNER}}},
        "isBase64Encoded": False,
    }
    if cookies := draw(st.lists(WILD, max_size=2)):
        event["cookies"] = cookies
    if body := draw(BODIES):
        event["body"], event["isBase64Encoded"] = body
    return event


@st.composite
def api_events(draw: st.DrawFn) -> Json:
    """Payload format 1.0."""
    path, method, headers = draw(PATHS), draw(METHODS), draw(HEADERS)
    query = draw(st.dictionaries(st.just("stream") | WILD, st.lists(WILD, min_size=1, max_size=2), max_size=2))
    identity = {"sourceIp": draw(st.just(SOURCE) | WILD), "userAgent": draw(WILD), "userArn": SIGNER}
    body, is_encoded = draw(BODIES) or (None, False)
    return {
        "resource": "/{proxy+}",
        "path": path,
        "httpMethod": method,
        "headers": headers or None,
        "multiValueHeaders": {name: [value] * draw(st.integers(1, 2)) for name, value in headers.items()} or None,
        "queryStringParameters": {name: values[-1] for name, values in query.items()} or None,
        "multiValueQueryStringParameters": query or None,
        "pathParameters": {"proxy": path},
        "stageVariables": None,
        "requestContext": {"domainName": draw(WILD), "httpMethod": method, "identity": identity, "stage": "live"},
        "body": body,
        "isBase64Encoded": is_encoded,
    }


@pytest.mark.parametrize("function", ["chat", "sessions"])
@BOUNDED
@given(event=url_events() | api_events())
def test_any_event_becomes_a_response(world: World, function: str, event: Json) -> None:
    response = invoke(world.functions[function].handler, event)
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        check_problem(response)


@pytest.mark.parametrize("function", ["chat", "sessions"])
@pytest.mark.parametrize("headers", [{"host": "a:b:c"}, {"host": "a:b"}, {"x-forwarded-port": "a"}, {"x": "\ud800"}])
def test_a_request_that_makes_no_sense_is_a_bad_request(world: World, function: str, headers: Any) -> None:
    http = {"method": "GET", "path": "/", "sourceIp": SOURCE}
    event = {"version": "2.0", "rawQueryString": "", "headers": headers, "requestContext": {"http": http}}
    check_problem(invoke(world.functions[function].handler, event), 400, "malformed_request")


NAMELESS: list[Any] = [None, 5, "x", [], {}, {"userArn": None}, {"userArn": 5}, {"userArn": ""}]


@pytest.mark.parametrize("named", NAMELESS)
def test_a_signer_that_is_not_named_is_nobody(world: World, named: Any) -> None:
    """In `identity` of format 1.0, in `iam` of 2.0."""
    for authorizer in (named, {"iam": named}):
        context = {"http": {"method": "GET", "path": "/sessions", "sourceIp": SOURCE}, "authorizer": authorizer}
        event: Json = {"version": "2.0", "rawQueryString": "", "headers": {"x-user-id": "ada"}}
        answer = check_problem(invoke(world.sessions.handler, event | {"requestContext": context}))
        assert answer["status"] == 401
    event = {"resource": "/{proxy+}", "path": "/sessions", "httpMethod": "GET", "headers": {"X-User-Id": "ada"}}
    answer = check_problem(invoke(world.sessions.handler, event | {"requestContext": {"identity": named}}))
    assert answer["status"] == (401 if isinstance(named, dict) else 400)
