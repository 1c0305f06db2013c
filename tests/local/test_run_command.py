"""`python -m local run`, with functions that start in no time. With the real ones: `tests/test_fresh_clone.py`."""

import json
import os
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from local.__main__ import main
from tests.local.commands import command, descendants, still_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")

USES_A_PACKAGE = """
import tabulate

def handler(event, context):
    return tabulate.__version__
"""


def of(name: str, processes: dict[int, str]) -> int:
    return next(pid for pid, line in processes.items() if name in line)


def write_template(folder: Path, chat: str) -> Path:
    """Write the code of two functions, one of them the given code, and a template that has no others."""
    for name, code in (("chat", chat), ("sessions", "def handler(event, context): pass")):
        (folder / name).mkdir(parents=True)
        (folder / name / "app.py").write_text(code)
    parameters = ("MongoSecretArn", "OpenAISecretArn", "OpenAIBaseUrl")
    template = {
        "Parameters": {name: {"Type": "String"} for name in parameters},
        "Resources": {
            f"{name.capitalize()}Function": {
                "Type": "AWS::Serverless::Function",
                "Properties": {
                    "CodeUri": name,
                    "Handler": "app.handler",
                    "Runtime": "python3.13",
                    "FunctionUrlConfig": {"AuthType": "NONE"},
                },
            }
            for name in ("chat", "sessions")
        },
    }
    path = folder / "template.yaml"
    path.write_text(json.dumps(template))
    return path


def test_a_second_interrupt_ends_it_at_once(tmp_path: Path) -> None:
    template = write_template(tmp_path / "functions", chat="def handler(event, context): pass")
    with command("run", "--data", str(tmp_path), "--template", str(template), PORT="0") as running:
        running.read_until("is ready after")
        processes = descendants(running.pid)
        # It cannot end in order as long as this one does not.
        os.kill(of("mongod", processes), signal.SIGSTOP)
        running.send(signal.SIGINT)
        running.read_until("Stopping")
        running.send(signal.SIGINT)
        code, _ = running.end()
    assert code == 130
    assert still_running(processes) == {}


def test_the_run_reports_failures_reloads_changes_and_ends_with_its_mongod(
    tmp_path: Path,
) -> None:
    template = write_template(tmp_path, chat="def handler(event, context")
    with command("run", "--data", str(tmp_path / "data"), "--template", str(template), PORT="0") as running:
        url = running.read_until("Sessions").split()[1]
        assert running.read_until("Terminal").split()[1:] == [f"PORT={urlsplit(url).port}", "make", "chat"]
        said = running.read_until("function failed")
        assert said == "The chat function failed; see its log above. It restarts when you save a fix.\n"
        assert any("SyntaxError" in line for line in running.said)
        for answer in ("corrected", "changed"):
            (tmp_path / "chat" / "app.py").write_text(f"def handler(event, context):\n    return {answer!r}\n")
            running.read_until("chat/app.py changed: restarting the functions.")
            running.read_until("chat      invocation")
            assert httpx.get(url.replace("sessions", "chat"), trust_env=False, timeout=60).json() == answer
        (tmp_path / "chat" / "requirements.txt").write_text("tabulate==0.9.0\n")
        running.read_until("chat/requirements.txt changed: restarting the functions.")
        (tmp_path / "chat" / "app.py").write_text(USES_A_PACKAGE)
        running.read_until("chat/app.py changed: restarting the functions.")
        running.read_until("chat      invocation")
        assert httpx.get(url.replace("sessions", "chat"), trust_env=False, timeout=60).json() == "0.9.0"
        processes = descendants(running.pid)
        assert all(of(name, processes) for name in ("mongod", "local.moto_server", "local.model", "bootstrap.py"))
        os.kill(of("mongod", processes), signal.SIGKILL)
        code, rest = running.end()
    assert code == 1
    log = tmp_path / "data" / "mongod" / "mongod.log"
    assert rest.splitlines()[-1] == f"mongod ended unexpectedly with signal SIGKILL; its log is {log}."
    assert still_running(processes) == {}


def test_a_port_that_is_none_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PORT", "http")
    assert main(["run"]) == 1
    assert capsys.readouterr() == ("", "PORT must be a number up to 65535, not 'http'.\n")
