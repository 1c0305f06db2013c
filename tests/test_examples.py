"""The examples, run as their readers would."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from pymongo import MongoClient

from local.ports import free_port
from local.template import ROOT
from tests.fixtures.endings import PATIENCE_SECONDS

LONG_ANSWER = "[slow:20] [long:2000]"
"""The offline model takes 20 ms for each of 2000 words."""


@pytest.fixture
def environment(mongod: str) -> dict[str, str]:
    """A database of the test's own, and no key."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return {**kept, "MONGODB_URI": mongod, "MONGODB_DATABASE": f"examples-{uuid.uuid4().hex[:8]}"}


@contextmanager
def running(environment: dict[str, str], *command: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def serving(environment: dict[str, str]) -> Iterator[tuple["subprocess.Popen[bytes]", httpx.Client]]:
    """Run the server, and yield a client once it listens."""
    port = free_port()
    with running(environment, "examples.server", str(port)) as process:
        assert process.stderr is not None
        assert any(b"Uvicorn running" in line for line in process.stderr), "the server has ended"
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            yield process, client


def stored_answer(environment: dict[str, str]) -> dict[str, Any]:
    """The last answer in MongoDB."""
    with MongoClient[dict[str, Any]](environment["MONGODB_URI"]) as client:
        messages = client[environment["MONGODB_DATABASE"]]["messages"]
        answer = messages.find_one({"role": "assistant"}, sort=[("turn_number", -1)])
    assert answer is not None
    return answer


def text_of(answer: dict[str, Any]) -> str:
    return "".join(part["text"] for part in answer["parts"] if part["type"] == "text")


def test_ctrl_c_in_chat_stores_the_shown_text_for_the_next_run(
    environment: dict[str, str],
) -> None:
    with running(environment, "examples.chat", f"My name is Ada. {LONG_ANSWER}") as first:
        assert first.stdout is not None
        beginning = first.stdout.read(40)
        os.killpg(first.pid, signal.SIGINT)  # as a terminal does
        rest, error = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 0, error.decode()
    told, stopped, _ = (beginning + rest).decode().partition("\n[stopped]")
    assert stopped
    answer = stored_answer(environment)
    assert answer["status"] == "cancelled"
    assert text_of(answer).startswith(told)

    with running(environment, "examples.chat") as second:
        shown, error = second.communicate(
            b"What is my name?\nMultiply 17 by 23, and what is today's date?\n"
            b"[tool:forget_everything {}] [then] [echo:Nothing is forgotten.]\nnot now\n",
            timeout=PATIENCE_SECONDS,
        )
    assert second.returncode == 0, error.decode()
    _, name, numbers = shown.decode().split("> ", 2)
    assert "Ada" in name
    assert "[it answered 391.0]" in numbers
    assert "[calling today with {}]" in numbers
    assert "May forget_everything run with {}? [y/N] Nothing is forgotten." in numbers


def test_a_server_that_gets_sigterm_stores_what_was_streamed(environment: dict[str, str]) -> None:
    with serving(environment) as (process, client):
        events = []
        with client.stream("POST", "/chat", json={"session_id": "demo", "query": LONG_ANSWER}) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    break
                if line:
                    events.append(json.loads(line.removeprefix("data: ")))
                if len(events) == 20:
                    process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode in (0, -signal.SIGTERM), log.decode()
    assert [event["type"] for event in events if event["type"] in ("abort", "finish")] == ["abort", "finish"]
    streamed = "".join(event["delta"] for event in events if event["type"] == "text-delta")
    assert streamed
    assert text_of(stored_answer(environment)) == streamed


def test_a_server_has_chat_resume_stop_history_sessions_and_approvals(environment: dict[str, str]) -> None:
    with serving(environment) as (_, client):
        body = {"session_id": "demo", "query": '[tool:refund {"order_id": "42"}] [then] [echo:Done.]'}
        waiting = client.post("/chat?stream=false", json=body)
        assert (waiting.status_code, waiting.json()["status"]) == (200, "waiting")
        [approval] = client.get("/approvals").json()["approvals"]
        assert (approval["tool"], approval["input"]) == ("refund", {"order_id": "42"})
        assert client.post(f"/chat/approvals/{approval['id']}", json={"approved": True}).status_code == 200
        while client.get("/sessions/demo").json()["answering"]:
            client.get("/chat/demo/stream")
        question, answer = client.get("/sessions/demo/messages").json()["messages"]
        assert (question["role"], answer["parts"][-1]["text"]) == ("user", "Done.")
        assert client.post("/sessions/demo/cancel").json()["code"] == "no_running_turn"
        assert [each["id"] for each in client.get("/sessions").json()["sessions"]] == ["demo"]
        refused = client.get("/chat")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        for page, path in (("/docs", "/sessions"), ("/chat/docs", "/chat")):
            assert "Swagger" in client.get(page).text
            assert path in client.get(page.replace("docs", "openapi.json")).json()["paths"]
        other = client.get("/sessions/demo", headers={"x-user-id": "bob"})
        assert (other.status_code, other.json()["code"]) == (404, "not_found")


def test_the_tests_of_an_agent_pass() -> None:
    """In a process of their own: this one already has the product's fixtures."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "examples/test_agent.py"],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # others take seconds to load
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout
