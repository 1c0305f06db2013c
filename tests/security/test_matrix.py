"""Every route of both functions, called with every kind of refused token, and with that of another user.

That every route serves its own users is in `test_surface`.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from local.model import OfflineModel
from omniagent.http.sessions_app import router
from omniagent.session.ids import new_id
from tests.fixtures.function_url import PAYLOADS
from tests.fixtures.issuer import AUDIENCE, Issuer
from tests.fixtures.problems import check_problem
from tests.fixtures.world import User, World, open_world
from tests.security.routes import DOCUMENTS, ROUTES, Route, call, stored

Json = dict[str, Any]
PAGES = {"/docs", "/openapi.json", "/chat/docs", "/chat/openapi.json"}
SECRET = "the treasure is under the oak"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel, issuer: Issuer) -> Iterator[World]:
    """Both functions with open URLs, where a token is needed."""
    with open_world(mongod, model.base_url, auth_mode="jwt", jwt_issuer=issuer.url, jwt_audience=AUDIENCE) as world:
        yield world


def bearer(world: World, issuer: Issuer, subject: str) -> User:
    headers = {"authorization": f"Bearer {issuer.token(sub=subject)}"}
    return User(world.client(signed=False, headers=headers), f"jwt:{issuer.url} {subject}")


@pytest.fixture(scope="module")
def ada(world: World, issuer: Issuer) -> User:
    """Somebody with a session in which one message is answered. No test may change anything of it."""
    ada = bearer(world, issuer, f"ada-{new_id()}")
    ada.ask(f"[echo:{SECRET}]", message_id="question")
    return ada


STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def refused_headers(issuer: Issuer, subject: str) -> list[dict[str, str]]:
    """One of each refusal. Every flaw that a token may have is in `tests/http/test_tokens`."""
    tokens = [
        issuer.token(sub=subject, exp=int(time.time()) - 60),
        issuer.token(sub=subject, key=STRANGER),
        issuer.token(sub=subject, token_use="id"),
    ]
    return [{}, *({"authorization": f"Bearer {token}"} for token in tokens)]


def test_no_route_is_missing_here(world: World) -> None:
    served = {
        (name, method, route.path)
        for name, routes in {"chat": world.chat.app.routes, "sessions": router.routes}.items()
        for route in routes
        if route.path not in PAGES
        for method in route.methods
    }
    assert served == {(route.function, route.method, route.path) for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_without_a_good_token_nothing_is_told_or_changed(route: Route, world: World, issuer: Issuer, ada: User) -> None:
    before = stored(world)
    refusals = set()
    for headers, payload in zip(
        refused_headers(issuer, ada.client_id.partition(" ")[2]), cycle(PAYLOADS), strict=False
    ):
        caller = replace(world, payloads=(payload,)).client(signed=False, headers=headers)
        response = call(caller, route, ada.session)
        problem = check_problem(response, 401, "unauthenticated")
        assert response.headers["www-authenticate"].startswith('Bearer realm="omniagent"')
        assert SECRET not in response.text
        refusals.add(problem["detail"])
    assert refusals == {
        "Send a bearer token.",
        "The token has expired.",
        "The token is not valid.",
        "The token is not an access token.",
    }
    assert stored(world) == before


def test_a_signature_is_no_token(world: World, ada: User) -> None:
    signed = world.client(signed=True, headers={"x-user-id": ada.client_id})
    assert call(signed, ROUTES[0], ada.session).status_code == 401


def test_the_pages_ask_for_a_token_where_one_is_needed(world: World) -> None:
    for name in world.functions:
        document = world.client(signed=False).get(f"http://{name}{DOCUMENTS[name]}").json()
        [(scheme, described)] = document["components"]["securitySchemes"].items()
        assert (described["type"], described["scheme"]) == ("http", "bearer")
        assert document["security"] == [{scheme: []}]
