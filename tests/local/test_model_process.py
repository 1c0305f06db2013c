"""The offline model as a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from local.model.journal import Journal
from local.model.offline import make_server
from omniagent.ai.providers.openai.openai_responses import OpenAIOptions

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "local.model", "--port", "0", "--tokens-per-second", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        assert process.stdout.read() == ""


def test_it_prints_its_address_and_counts_what_it_serves(url: str) -> None:
    body = {"model": "offline", "input": "[stall] Tell me about rivers.", "stream": True}
    stats = url.removesuffix("/v1") + "/_stats"
    assert httpx.get(stats, timeout=60).json() == {"requests": 0, "active": 0, "disconnects": 0}
    with httpx.stream("POST", f"{url}/responses", json=body, timeout=60) as answer:
        chunks = answer.iter_bytes()
        assert b"response.created" in next(chunks)
        assert httpx.get(stats, timeout=60).json() == {"requests": 1, "active": 1, "disconnects": 0}
    while (seen := httpx.get(stats, timeout=60).json())["active"]:
        pass
    assert seen == {"requests": 1, "active": 0, "disconnects": 1}


def test_it_keeps_an_idle_connection_longer_than_a_client_would_use_it_again() -> None:
    server = make_server(Journal())
    assert server.config.timeout_keep_alive > OpenAIOptions().keepalive_seconds
