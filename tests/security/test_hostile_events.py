"""Whatever a caller puts into a request, the handlers make a response of the event: never a function error."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.security.function_url import SIGNER, SOURCE, Json, invoke
from tests.security.fuzz import BOUNDED, LOADED
from tests.security.leaks import check_problem
from tests.security.routes import ROUTES
from tests.security.world import World

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


@st.composite
def events(draw: st.DrawFn) -> Json:
    path, query = draw(PATHS), draw(WILD)
    http = {
        "method": draw(st.sampled_from(["GET", "POST", "PATCH", "DELETE", "OPTIONS", "HEAD", "PUT", "TRACE", "get"])),
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
        "headers": draw(st.dictionaries(NAMES | st.text(max_size=10), WILD, max_size=6)),
        "requestContext": {"domainName": draw(WILD), "http": http, "authorizer": {"iam": {"userArn": SIGNER}}},
        "isBase64Encoded": False,
    }
    if cookies := draw(st.lists(WILD, max_size=2)):
        event["cookies"] = cookies
    if body := draw(BODIES):
        event["body"], event["isBase64Encoded"] = body
    return event


@pytest.mark.parametrize("function", ["chat", "sessions"])
@BOUNDED
@given(event=events())
def test_any_event_becomes_a_response(world: World, function: str, event: Json) -> None:
    response = invoke(world.functions[function].handler, event)
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        check_problem(response)
