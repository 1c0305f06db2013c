"""Who may speak for whom: signers that name others, and what the log says of them.

The matrix of flawed tokens is in `test_matrix`, near misses of trusted principals in `tests/http/test_auth`. Tokens for
something else, and what becomes of keys over time, are in `tests/http/test_tokens`.
"""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from omniagent.session.ids import user_id_of
from omniagent.tracing.logs import setup_logging
from tests.fixtures.function_url import PAYLOADS, SIGNER, SOURCE
from tests.fixtures.problems import check_problem
from tests.fixtures.world import User, World
from tests.security.routes import ONE_OF_EACH_FUNCTION, ROUTES, call, stored

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
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is logged meanwhile, as Lambda logs it."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "chat")
    root = logging.getLogger()
    before = list(root.handlers)
    out = io.StringIO()
    setup_logging("INFO", stream=out)
    yield out
    for handler in [handler for handler in root.handlers if handler not in before]:
        root.removeHandler(handler)


def test_whom_the_operator_does_not_trust_speaks_for_nobody(world: World, ada: User) -> None:
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


def test_the_log_says_who_from_where_and_why_not(world: World, log: io.StringIO) -> None:
    user = world.user()
    assert user.call("GET", "/sessions").status_code == 200
    world.client(signer=STRANGER, headers={"x-user-id": "ada"}).get("http://sessions/sessions")
    world.client(signer=POOL).post("http://chat/chat", json={"query": "Hello"})
    world.client(signed=False).get("http://sessions/sessions")
    user.call("GET", "/nowhere")
    user.call("GET", "/sessions", headers={"host": "a:b:c"})
    user.call("GET", "/sessions/none")
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    found = [line for line in lines if line["message"] in {"caller authenticated", "request refused"}]
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
    assert SIGNER not in log.getvalue()
