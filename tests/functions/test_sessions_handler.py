"""The sessions function as Lambda calls it: its real handler, with the sample events."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.database import Database

from local.model import OfflineModel
from tests.functions.loading import FUNCTIONS, close, loaded

Json = dict[str, Any]
EVENTS = Path(__file__).parents[2] / "events"
CONTEXT = SimpleNamespace(aws_request_id="request-1", get_remaining_time_in_millis=lambda: 60_000)


@pytest.fixture
def sessions(mongod: str, database: Database[Json], model: OfflineModel) -> Iterator[Any]:
    environment = {"MONGODB_URI": mongod, "MONGODB_DATABASE": database.name, "OPENAI_BASE_URL": model.base_url}
    with loaded("sessions", {**environment, "AUTH_MODE": "iam"}) as module:
        yield module
        close(module.app.state.services)


def event(name: str, **changes: Any) -> Json:
    return {**json.loads((EVENTS / f"{name}.json").read_text()), **changes}


def test_the_sample_events_tell_the_story_of_a_session(sessions: Any) -> None:
    def send(name: str) -> tuple[int, Json]:
        response = sessions.handler(event(name), CONTEXT)
        assert response["headers"]["x-request-id"] == "request-1"
        return response["statusCode"], json.loads(response["body"]) if response["body"] else {}

    status, made = send("sessions-create")
    assert (status, made["id"], made["name"]) == (201, "lisbon-trip-01", "Trip to Lisbon")
    status, listed = send("sessions-list")
    assert (status, [session["id"] for session in listed["sessions"]]) == (200, ["lisbon-trip-01"])
    assert send("sessions-get") == (200, made)
    assert send("sessions-rename")[1]["name"] == "Lisbon in November"
    assert send("sessions-messages") == (200, {"messages": [], "before": None})
    assert send("sessions-name")[0] == 200
    status, refused = send("sessions-cancel")
    assert (status, refused["code"]) == (409, "no_running_turn")
    assert send("sessions-not-found")[0] == 404
    assert send("sessions-summary-get")[0] == 404
    assert send("sessions-summary-queue")[1]["code"] == "no_queue"
    assert send("sessions-delete-message")[0] == 404
    assert send("sessions-delete") == (204, {})
    assert send("sessions-delete-user") == (204, {})
    assert send("sessions-list") == (200, {"sessions": [], "before": None})


def test_an_unsigned_event_is_refused(sessions: Any) -> None:
    unsigned = event("sessions-list")
    del unsigned["requestContext"]["authorizer"]
    response = sessions.handler(unsigned, CONTEXT)
    assert (response["statusCode"], json.loads(response["body"])["code"]) == (401, "unauthenticated")
    assert response["headers"]["www-authenticate"] == "AWS4-HMAC-SHA256"


@pytest.mark.parametrize(
    ("body", "encoded", "status"), [("{not json", False, 400), ("//4=", True, 400), ('{"name": 1}', False, 422)]
)
def test_a_bad_body_is_a_problem(sessions: Any, body: str, encoded: bool, status: int) -> None:
    response = sessions.handler(event("sessions-rename", body=body, isBase64Encoded=encoded), CONTEXT)
    problem = json.loads(response["body"])
    assert (response["statusCode"], problem["status"], problem["request_id"]) == (status, status, "request-1")


def test_one_connection_serves_every_invocation(sessions: Any, database: Database[Json]) -> None:
    def created() -> int:
        status: Json = database.client.admin.command("serverStatus")
        connections: int = status["connections"]["totalCreated"]
        return connections

    sessions.handler(event("sessions-list"), CONTEXT)
    before = created()
    for _ in range(20):
        assert sessions.handler(event("sessions-list"), CONTEXT)["statusCode"] == 200
    assert created() == before


@pytest.mark.parametrize(
    ("function", "never"),
    [
        ("sessions", ["openai", "boto3", "jwt", "opentelemetry.sdk", "omniagent.ai.runner"]),
        ("summary", ["openai", "boto3", "fastapi", "jwt", "opentelemetry.sdk"]),
    ],
)
def test_a_cold_start_imports_only_what_the_function_uses(function: str, never: list[str]) -> None:
    code = f"import sys, {function}.app; print([name for name in {never!r} if name in sys.modules])"
    layer = FUNCTIONS.parent / "layers" / "core"
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=FUNCTIONS,
        env={"PYTHONPATH": str(layer), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.strip() == "[]"
