"""Who may speak for whom: signers that name others, issuers that fail, and what the log says of both.

The matrix of flawed tokens is in `test_matrix`, near misses of trusted principals in `tests/http/test_auth`. Tokens for
something else, and what becomes of keys over time, are in `tests/http/test_tokens`.
"""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import httpx
import pytest

from omniagent.http import signing_keys
from omniagent.http.auth import Authenticator
from omniagent.session.ids import user_id_of
from omniagent.settings import Settings
from omniagent.tracing.logs import setup_logging
from tests.fixtures.function_url import PAYLOADS, SIGNER, SOURCE
from tests.fixtures.issuer import AUDIENCE, Issuer
from tests.fixtures.problems import check_problem
from tests.fixtures.world import User, World
from tests.security.routes import DOCUMENTS, ONE_OF_EACH_FUNCTION, ROUTES, Route

Json = dict[str, Any]
SECRET = "the treasure is under the oak"
STRANGER = "arn:aws:sts::123456789012:assumed-role/web-backend-2/web-backend"
POOL = "arn:aws:sts::123456789012:assumed-role/PoolUsers/CognitoIdentityCredentials"


@pytest.fixture(scope="module")
def ada(world: World) -> User:
    """A user of the trusted back end, with a session in which one message is answered. No test changes it."""
    ada = world.user()
    ada.ask(f"[echo:{SECRET}]", message_id="question")
    return ada


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator["_Lines"]:
    """What is logged meanwhile, as Lambda logs it."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "chat")
    root = logging.getLogger()
    before = list(root.handlers)
    out = io.StringIO()
    setup_logging("INFO", stream=out)
    yield _Lines(out)
    for handler in [handler for handler in root.handlers if handler not in before]:
        root.removeHandler(handler)


class _Lines:
    def __init__(self, out: io.StringIO) -> None:
        self._out = out

    def read(self) -> list[Json]:
        return [json.loads(line) for line in self._out.getvalue().splitlines()]


@contextmanager
def authenticating(world: World, **settings: Any) -> Iterator[None]:
    """Both functions, with another way to find out who calls."""
    authenticate = Authenticator(Settings(**settings)).authenticate
    states = [function.app.state for function in world.functions.values()]
    before = [state.authenticate for state in states]
    for state in states:
        state.authenticate = authenticate
    try:
        yield
    finally:
        for state, previous in zip(states, before, strict=True):
            state.authenticate = previous


def tokens_of(issuer: Issuer, **changes: Any) -> Json:
    """The settings of a deployment that takes this issuer's tokens."""
    return {"auth_mode": "jwt", "jwt_issuer": issuer.url, "jwt_audience": AUDIENCE, **changes}


def stored(world: World) -> list[Json]:
    names = ("users", "sessions", "messages", "summaries")
    return [document for name in names for document in world.database[name].find().sort("_id")]


def call(caller: httpx.Client, route: Route, session_id: str) -> httpx.Response:
    body = None if route.body is None else {**route.body, "session_id": session_id, "id": session_id}
    return caller.request(route.method, f"http://{route.function}{route.at(session_id, 'question')}", json=body)


class TestSigners:
    def test_whom_the_operator_does_not_trust_speaks_for_nobody(self, world: World, ada: User) -> None:
        before = stored(world)
        name = ada.client_id.removeprefix("user:")
        attempts: list[tuple[str, dict[str, str]]] = [
            (STRANGER, {"x-user-id": name}),
            (STRANGER, {"x-user-id": ""}),
            (STRANGER, {"x-user-category": "pro"}),
            (POOL, {"x-user-id": name}),
            (POOL, {}),
        ]
        # Each attempt at each function in both formats of events, and one at every other route.
        tried = [*product(ONE_OF_EACH_FUNCTION, attempts, PAYLOADS), *product(ROUTES, attempts[:1], PAYLOADS[:1])]
        for route, (signer, headers), payload in tried:
            caller = replace(world, payloads=(payload,)).client(signer=signer, headers=headers)
            response = call(caller, route, ada.session)
            assert (str(route), response.status_code) == (str(route), 403)
            problem = check_problem(response, 403, "forbidden")
            assert SECRET not in response.text
            assert name not in problem["detail"]
        assert stored(world) == before

    def test_a_trusted_back_end_that_lost_its_users_name_speaks_for_nobody(self, world: World) -> None:
        for name in ("", " ", "ada,eve"):
            response = world.client(headers={"x-user-id": name}).get("http://sessions/sessions")
            check_problem(response, 422, "invalid_request")

    def test_nobody_is_trusted_until_the_operator_says_so(self, world: World) -> None:
        with authenticating(world, auth_mode="iam"):
            named = world.client(headers={"x-user-id": "ada"})
            check_problem(named.get("http://sessions/sessions"), 403, "forbidden")
            assert world.client().get("http://sessions/sessions").status_code == 200

    def test_openapi_documents_401_and_403_for_every_route(self, world: World) -> None:
        for name in world.functions:
            paths = world.client().get(f"http://{name}{DOCUMENTS[name]}").json()["paths"]
            assert all(
                {"401", "403"} <= route["responses"].keys() for path in paths.values() for route in path.values()
            )

    def test_a_list_that_cannot_be_read_lets_nobody_in(self, world: World) -> None:
        with authenticating(world, auth_mode="iam", trusted_principals="arn:aws:iam::123456789012:role/*"):
            for headers in ({"x-user-id": "ada"}, {}):
                response = world.client(headers=headers).get("http://sessions/sessions")
                check_problem(response, 500, "configuration_error")


class TestIssuers:
    def test_known_keys_serve_while_the_issuer_fails(
        self, world: World, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # They are old at once, and asked for again at once.
        for name in ("KEYS_LIFE_SECONDS", "REFRESH_SECONDS"):
            monkeypatch.setattr(signing_keys, name, 0)
        with authenticating(world, **tokens_of(issuer)):
            ada = _bearer(world, issuer.token())
            assert ada.get("http://sessions/sessions").status_code == 200
            failures: list[tuple[int, bytes | None]] = [(500, None), (404, None), (200, b"<html>"), (200, b"{}")]
            for issuer.status, issuer.garbage in failures:
                assert ada.get("http://sessions/sessions").status_code == 200
        assert issuer.fetches > 1


class TestLog:
    def test_the_log_says_who_from_where_and_why_not(self, world: World, lines: _Lines) -> None:
        user = world.user()
        assert user.call("GET", "/sessions").status_code == 200
        world.client(signer=STRANGER, headers={"x-user-id": "ada"}).get("http://sessions/sessions")
        world.client(signer=POOL).post("http://chat/chat", json={"query": "Hello"})
        world.client(signed=False).get("http://sessions/sessions")
        user.call("GET", "/nowhere")
        user.call("GET", "/sessions", headers={"host": "a:b:c"})
        user.call("GET", "/sessions/none")
        found = [line for line in lines.read() if line["message"] in {"caller authenticated", "request refused"}]
        assert {line["source_ip"] for line in found} == {SOURCE}
        who, by = user_id_of(user.client_id), user_id_of(f"iam:{SIGNER}")
        assert [(line["message"], line.get("user_id"), line.get("signer")) for line in found[:1]] == [
            ("caller authenticated", who, by)
        ]
        assert [(line.get("user_id"), line["status"], line["reason"]) for line in found if "status" in line] == [
            (user_id_of(f"iam:{STRANGER}"), 403, "principal not trusted"),
            (user_id_of(f"iam:{POOL}"), 403, "principal shared by many"),
            (None, 401, "no AWS signature"),
            (None, 404, "not_found"),
            (None, 400, "event unreadable: ValueError"),
            (who, 404, "not_found"),
        ]
        assert SIGNER not in str(lines.read())

    def test_a_refused_token_is_logged_by_its_flaw_and_never_itself(
        self, world: World, issuer: Issuer, lines: _Lines
    ) -> None:
        flaws = {
            issuer.token(exp=1): "token: expired",
            issuer.token(aud="another"): "token: wrong audience",
            issuer.token(token_use="id"): "token: wrong token_use",
            issuer.token(kid="unknown"): "token: unknown key",
            "not-a.token-at.all-of-it": "token: unreadable",
        }
        with authenticating(world, **tokens_of(issuer)):
            for token in flaws:
                assert _bearer(world, token).get("http://sessions/sessions").status_code == 401
        refused = [line for line in lines.read() if line["message"] == "request refused"]
        assert [(line["reason"], line["source_ip"]) for line in refused] == [(why, SOURCE) for why in flaws.values()]
        assert not [part for token in flaws for part in token.split(".") if part in str(lines.read())]


def test_the_slash_at_the_end_of_a_url_is_forgiven(user: User) -> None:
    """`${url}/chat`, where the URL ends in a slash already."""
    answer = user.http.post("http://chat//chat", json={"session_id": user.session, "query": "Hello"})
    assert answer.status_code == 200
    assert user.http.get(f"http://chat//chat/{user.session}/stream").status_code in (200, 204)
    for path in ("sessions", f"sessions/{user.session}", f"sessions/{user.session}/messages"):
        assert user.http.get(f"http://sessions//{path}").status_code == 200


def _bearer(world: World, token: str) -> httpx.Client:
    return world.client(signed=False, headers={"authorization": f"Bearer {token}"})
