"""Every route of both functions, called with every kind of refused token, and with that of another user.

That every route serves its own users is in `test_surface`.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from local.model import OfflineModel
from omniagent.http.sessions_app import router
from omniagent.http.tokens import MAX_TOKEN_LENGTH
from omniagent.session.ids import new_id
from tests.fixtures.function_url import PAYLOADS, Payload
from tests.fixtures.issuer import AUDIENCE, Issuer
from tests.fixtures.problems import check_problem
from tests.fixtures.world import User, World, open_world
from tests.security.routes import DOCUMENTS, ONE_OF_EACH_FUNCTION, ROUTES, Route

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


def forged(issuer: Issuer, algorithm: str, secret: bytes | None, **claims: Any) -> str:
    """A token signed with nothing, or with the issuer's public key as if both shared it."""
    parts = ({"alg": algorithm, "kid": "rsa", "typ": "JWT"}, issuer.claims(**claims))
    signed = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    signature = b"" if secret is None else hmac.new(secret, signed, hashlib.sha256).digest()
    return b".".join((signed, base64.urlsafe_b64encode(signature).rstrip(b"="))).decode()


STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OWN_KEYS = {"jwk": RSAAlgorithm.to_jwk(STRANGER.public_key(), as_dict=True), "jku": "http://127.0.0.1:9/keys"}
FLAWS = (
    "no token",
    "expired",
    "not yet valid",
    "wrong issuer",
    "wrong audience",
    "wrong key",
    "unknown key id",
    "no key id",
    "keys of its own",
    "no subject",
    "ID token",
    "DPoP proof",
    "oversized",
    "nested",
    "none algorithm",
    "HS256 with the public key",
    "another scheme",
    "no token at all in the header",
)
ONE_OF_EACH_REFUSAL = ("no token", "expired", "wrong key", "ID token")


def authorization(flaw: str, issuer: Issuer, subject: str) -> dict[str, str]:
    """The header of a request with a flaw in its token, which otherwise names the owner."""
    now = int(time.time())
    tokens: dict[str, Callable[[], str]] = {
        "expired": lambda: issuer.token(sub=subject, exp=now - 60),
        "not yet valid": lambda: issuer.token(sub=subject, nbf=now + 600),
        "wrong issuer": lambda: issuer.token(sub=subject, iss="https://evil.example"),
        "wrong audience": lambda: issuer.token(sub=subject, aud="another-app"),
        "wrong key": lambda: issuer.token(sub=subject, key=STRANGER),
        "unknown key id": lambda: issuer.token(sub=subject, kid="unknown"),
        "no key id": lambda: issuer.token(sub=subject, kid=None),
        "keys of its own": lambda: issuer.token(sub=subject, key=STRANGER, header=OWN_KEYS),
        "no subject": lambda: issuer.token(sub=None),
        "ID token": lambda: issuer.token(sub=subject, token_use="id"),
        "DPoP proof": lambda: issuer.token(sub=subject, header={"typ": "dpop+jwt"}),
        "oversized": lambda: issuer.token(sub=subject, padding="x" * MAX_TOKEN_LENGTH),
        "nested": lambda: base64.urlsafe_b64encode(b'{"alg":"RS256","kid":' + b"[" * 5_000).decode() + ".e30.AA",
        "none algorithm": lambda: forged(issuer, "none", None, sub=subject),
        "HS256 with the public key": lambda: forged(issuer, "HS256", issuer.public_pem, sub=subject),
        "no token at all in the header": lambda: "",
    }
    if flaw == "no token":
        return {}
    if flaw == "another scheme":
        return {"authorization": f"Basic {base64.b64encode(subject.encode()).decode()}"}
    return {"authorization": f"Bearer {tokens[flaw]()}"}


def call(caller: httpx.Client, route: Route, session_id: str, message_id: str = "question") -> httpx.Response:
    body = None if route.body is None else {**route.body, "session_id": session_id, "id": session_id}
    return caller.request(route.method, f"http://{route.function}{route.at(session_id, message_id)}", json=body)


def everything(world: World) -> list[Json]:
    names = ("users", "sessions", "messages", "summaries")
    return [document for name in names for document in world.database[name].find().sort("_id")]


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
    before = everything(world)
    refusals = set()
    # Each flaw comes to each function, to one through a Function URL and to the other through API Gateway.
    flaws = FLAWS if route in ONE_OF_EACH_FUNCTION else ONE_OF_EACH_REFUSAL
    for flaw, payload in zip(flaws, cycle(PAYLOADS if route.function == "chat" else PAYLOADS[::-1]), strict=False):
        headers = authorization(flaw, issuer, ada.client_id.partition(" ")[2])
        caller = replace(world, payloads=(payload,)).client(signed=False, headers=headers)
        response = call(caller, route, ada.session)
        assert (flaw, response.status_code) == (flaw, 401)
        problem = check_problem(response)
        assert response.headers["www-authenticate"].startswith('Bearer realm="omniagent"')
        assert SECRET not in response.text
        refusals.add(problem["detail"])
    assert refusals == {
        "Send a bearer token.",
        "The token has expired.",
        "The token is not valid.",
        "The token is not an access token.",
    }
    assert everything(world) == before


@pytest.mark.parametrize(("route", "payload"), list(zip(ROUTES, cycle(PAYLOADS), strict=False)), ids=str)
def test_another_user_gets_what_is_their_own(
    route: Route, payload: Payload, world: World, issuer: Issuer, ada: User
) -> None:
    before = everything(world)
    eve = bearer(replace(world, payloads=(payload,)), issuer, f"eve-{new_id()}")
    response = call(eve.http, route, ada.session)
    assert SECRET not in response.text
    if "{session_id}" in route.path:
        assert response.status_code == (204 if route.function == "chat" else 404)
    else:
        # A session of the same name is another one.
        assert response.status_code == route.owner
    kept = everything(world)
    assert [document for document in before if document not in kept] == []


def test_a_signature_is_no_token(world: World, ada: User) -> None:
    signed = world.client(signed=True, headers={"x-user-id": ada.client_id})
    assert call(signed, ROUTES[0], ada.session).status_code == 401


def test_the_pages_ask_for_a_token_where_one_is_needed(world: World) -> None:
    for name in world.functions:
        document = world.client(signed=False).get(f"http://{name}{DOCUMENTS[name]}").json()
        [(scheme, described)] = document["components"]["securitySchemes"].items()
        assert (described["type"], described["scheme"]) == ("http", "bearer")
        assert document["security"] == [{scheme: []}]
