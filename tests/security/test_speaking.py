"""What the log says of signers that speak for others, and of those who may not.

Who may is in `tests/http/test_auth`, and that every route asks who calls in `test_matrix`.
"""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from omniagent.session.ids import user_id_of
from omniagent.tracing.logs import setup_logging
from tests.fixtures.function_url import SIGNER, SOURCE
from tests.fixtures.world import World

STRANGER = "arn:aws:sts::123456789012:assumed-role/web-backend-2/web-backend"
POOL = "arn:aws:sts::123456789012:assumed-role/PoolUsers/CognitoIdentityCredentials"


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
