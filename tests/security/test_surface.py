"""What a browser and a curious caller get to see: headers, cross-origin rules, pages, and nothing else."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from local.model import OfflineModel
from tests.fixtures.problems import check_problem
from tests.fixtures.world import User, World, open_world
from tests.security.routes import ROUTES, Route, owner_for

ORIGIN, OTHER = "https://app.example.com", "https://evil.example.com"
SAFE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_every_answer_keeps_browsers_from_guessing_and_speaks_of_no_other_origin(
    route: Route, world: World, ada: User
) -> None:
    user = owner_for(route, world, ada)
    url = f"http://{route.function}{route.at(user.session, user.messages()[-1]['id'])}"
    asked = {"origin": OTHER, "access-control-request-method": route.method}
    served = user.http.request(route.method, url, json=route.body, headers={"origin": OTHER})
    refused = world.client(signed=False).request(route.method, url, json=route.body)
    preflight = user.http.request("OPTIONS", url, headers=asked)
    assert route.serves(served.status_code)
    assert (refused.status_code, preflight.status_code) == (401, 405)
    for response in (served, refused, preflight):
        assert response.headers.items() >= SAFE.items()
        assert response.headers["cache-control"] == "no-store"
        assert "server" not in response.headers
        assert not [name for name in response.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", ["/sessions/", "/chat/", "//evil.example.com", "/sessions/..", "/%2e%2e/sessions"])
def test_no_path_is_redirected(user: User, path: str) -> None:
    response = user.http.get(f"http://sessions{path}")
    assert "location" not in response.headers
    assert check_problem(response)["status"] in (404, 422)


@pytest.fixture(scope="module")
def behind_api(mongod: str, model: OfflineModel) -> Iterator[World]:
    """Both functions behind API Gateway, which leaves CORS to them."""
    with open_world(mongod, model.base_url, cors_origins=f"{ORIGIN}, https://b.example.com") as world:
        yield replace(world, payloads=("1.0",))


@pytest.mark.parametrize(("function", "path"), [("chat", "/chat"), ("sessions", "/sessions")])
def test_behind_api_gateway_the_functions_answer_for_cors(behind_api: World, function: str, path: str) -> None:
    http, url = behind_api.client(signed=False), f"http://{function}{path}"
    # AI SDK 5.0.43 until March 2026 sets user-agent, for which Safari and Firefox ask.
    headers = "authorization,content-type,user-agent"
    asked = {"access-control-request-method": "POST", "access-control-request-headers": headers}
    preflight = http.options(url, headers={"origin": ORIGIN, **asked})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "x-user" not in preflight.headers["access-control-allow-headers"].lower(), "for back ends alone"
    refused = http.post(url, json={}, headers={"origin": ORIGIN})
    assert check_problem(refused)["status"] == 401
    assert refused.headers["access-control-allow-origin"] == ORIGIN
    exposed = refused.headers["access-control-expose-headers"].lower().split(", ")
    # WorkflowChatTransport reads its two from a page of another origin.
    assert {"retry-after", "x-workflow-run-id", "x-workflow-stream-tail-index"} <= {*exposed}
    for response in (http.options(url, headers={"origin": OTHER, **asked}), http.post(url, headers={"origin": OTHER})):
        assert "access-control-allow-origin" not in response.headers
    answered = behind_api.user().http.post(
        url, json={"query": "Hello"} if path == "/chat" else {}, headers={"origin": ORIGIN}
    )
    assert answered.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-credentials" not in answered.headers
