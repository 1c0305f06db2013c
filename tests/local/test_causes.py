"""What the person at the laptop hears about a failure: in the page, and in the terminal."""

import io
import json
from pathlib import Path

import httpx
import pytest

from local.causes import Causes, Place, place_of
from local.emulator.http import Exchange, Server
from local.front import Front
from local.log_lines import LogLines
from local.mongod import check_mongodb
from local.ports import LOOPBACK, free_port
from local.processes import ServiceError
from local.traces import Traces

FAILED = {
    "level": "WARNING",
    "message": "turn failed",
    "code": "model_auth",
    "cause": "AuthenticationError (status_code 401, code invalid_api_key, 45 characters of text)",
    "request_id": "r-1",
}
BROKEN = {
    "timestamp": "2026-01-01T00:00:00Z",
    "level": "ERROR",
    "errorType": "Runtime.UserCodeSyntaxError",
    "errorMessage": "Syntax error in module 'chat.app': invalid syntax (agent.py, line 3)",
    "requestId": "",
    "stackTrace": ['  File "/functions/agent.py" Line 3\n    def broken(:\n'],
}
TRACED = {
    "level": "ERROR",
    "message": "request failed",
    "exception": 'Traceback (most recent call last):\n  File "agent.py", line 7\nZeroDivisionError: division by zero',
    "exception_name": "ZeroDivisionError",
    "request_id": "r-2",
}


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("AuthenticationError (status_code 401, code invalid_api_key)", "OPENAI_API_KEY"),
        ("RateLimitError (status_code 429, code insufficient_quota)", "quota"),
        ("APIConnectionError: Connection error.", "cannot be reached"),
        ("NotFoundError (status_code 404)", "OPENAI_API"),
        ("the model's API sent no events (content type text/html): is its address right?", "OPENAI_BASE_URL"),
        ("ServerSelectionTimeoutError: no server", "MONGODB_URI"),
    ],
)
def test_a_failure_that_everybody_meets_comes_with_advice(cause: str, advice: str) -> None:
    causes = Causes()
    causes.add("chat", json.dumps({**FAILED, "cause": cause}))
    [found] = causes.of("r-1")
    assert found.cause == cause
    assert advice in found.advice


def test_only_so_many_are_kept() -> None:
    causes = Causes()
    for number in range(1_000):
        causes.add("chat", json.dumps({**FAILED, "request_id": f"r-{number}"}))
    assert causes.of("r-0") == []
    assert len(causes.of("r-999")) == 1


async def test_the_page_can_ask_why_a_request_failed() -> None:
    causes = Causes()
    front = Front(Traces(), causes)
    causes.add("chat", json.dumps(FAILED))
    causes.add("chat", json.dumps(TRACED))
    await front.start(0)
    async with httpx.AsyncClient(base_url=front.url, trust_env=False, timeout=60) as http:
        [told] = (await http.get("/local/causes", params={"request_id": "r-1"})).json()["causes"]
        [traced] = (await http.get("/local/causes", params={"request_id": "r-2"})).json()["causes"]
        assert (await http.get("/local/causes")).json() == {"causes": []}
    await front.close()
    assert (told["function"], told["message"], told["cause"]) == ("chat", "turn failed", FAILED["cause"])
    assert (traced["cause"], traced["traceback"]) == ("ZeroDivisionError: division by zero", TRACED["exception"])


@pytest.mark.parametrize("request_id", ["", "r-9"])
async def test_a_function_that_dies_or_does_not_start_is_explained(request_id: str) -> None:
    async def answer(exchange: Exchange) -> None:
        headers = [("x-amzn-requestid", request_id)] if request_id else []
        await exchange.respond(502, headers, b"Internal Server Error")

    causes = Causes()
    causes.add("chat", json.dumps(BROKEN))
    causes.add("chat", "RequestId: r-9 Error: Runtime exited with error: signal: killed")
    front, behind = Front(Traces(), causes), Server(answer)
    await behind.start()
    await front.start(0)
    front.open_to({"chat": f"http://{behind.address}"}, {})
    async with httpx.AsyncClient(base_url=front.url, trust_env=False, timeout=60) as http:
        response = await http.post("/chat", json={})
        asked = {"request_id": response.json()["request_id"]}
        [told] = (await http.get("/local/causes", params=asked)).json()["causes"]
    await front.close()
    await behind.close()
    problem = response.json()
    assert (response.status_code, response.headers["content-type"]) == (502, "application/problem+json")
    if request_id:
        assert (problem["title"], problem["code"]) == ("The chat function failed", "local")
        assert problem["detail"] == "Runtime exited with error: signal: killed"
    else:
        assert (problem["title"], problem["code"]) == ("agent.py does not load, line 3", "not_loaded")
        assert problem["detail"].startswith("SyntaxError: invalid syntax (agent.py, line 3)")
        assert "def broken(:" in told["traceback"]


@pytest.mark.parametrize(
    "inner",
    [
        "/home/ada/omniagent/layers/core/omniagent/ai/agent.py",
        "/home/ada/omniagent/.build/here/CoreLayer/python/pydantic/main.py",
        "/usr/lib/python3.13/json/decoder.py",
        "/var/runtime/bootstrap.py",
    ],
)
def test_a_failure_is_shown_at_the_teams_own_line(inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local.causes.ROOT", Path("/home/ada/omniagent"))
    own = Path("/home/ada/omniagent/functions/agent.py")
    assert place_of(f'  File "{own}", line 12, in <module>\n  File "{inner}", line 355, in x') == Place(own, 12)


def test_the_terminal_prints_a_traceback_as_one() -> None:
    out = io.StringIO()
    lines = LogLines(out)
    lines.print("chat", json.dumps({"level": "WARNING", "message": "LAMBDA_WARNING: Unhandled exception."}))
    lines.print("chat", json.dumps(TRACED))
    lines.print("chat", json.dumps(BROKEN))
    said = out.getvalue().splitlines()
    assert said[1:4] == TRACED["exception"].splitlines()
    assert said[4].endswith(f"ERROR    {BROKEN['errorType']}: {BROKEN['errorMessage']}")
    assert said[5:8] == [
        "Traceback (most recent call last):",
        '  File "/functions/agent.py" Line 3',
        "    def broken(:",
    ]


def test_a_mongodb_that_does_not_answer_is_said_at_once_and_without_its_password() -> None:
    uri = f"mongodb://ada:hunter2-hunter2@{LOOPBACK}:{free_port()}/"
    with pytest.raises(ServiceError, match=r"MongoDB does not answer.*refused") as refused:
        check_mongodb(uri, milliseconds=100)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ServiceError, match="MONGODB_URI cannot be used"):
        check_mongodb("postgres://ada:hunter2-hunter2@db")


def test_a_mongodb_that_answers_is_used(mongod: str) -> None:
    check_mongodb(mongod)
    with pytest.raises(ServiceError, match=r"MongoDB refuses.*[Aa]uthentication failed"):
        check_mongodb(mongod.replace("://", "://ada:wrong@"))
