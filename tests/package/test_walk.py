"""A stranger's first day: a project gets the README's agent, is run, killed, approved, tested, built and upgraded."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from local.template import ROOT
from tests.docs.blocks import read_blocks
from tests.fixtures.endings import PATIENCE_SECONDS
from tests.local.commands import Command, descendants, started, still_running
from tests.package.wheels import UV, Environment, new_environment
from tests.sam.builds import SAM_BIN

[AGENT] = [block.text for block in read_blocks(ROOT / "README.md") if block.runs]
TEST = """from agent import EUROS


def test_the_first_order_is_a_large_one() -> None:
    assert EUROS[1001] == 80
"""
LONG = "[slow:50][long:150] Tell me everything about refunds."


def theirs(project: Path) -> dict[str, bytes]:
    """What a team has in git, without our files."""
    ours = {line.partition("  ")[2] for line in (project / "omniagent.lock").read_text().splitlines()}
    found = (path for path in project.rglob("*") if path.is_file())
    names = {path.relative_to(project).as_posix(): path for path in found}
    ignored = (".build/", ".local/", ".aws-sam/", ".pytest_cache/", "omniagent.lock")
    return {
        name: path.read_bytes()
        for name, path in names.items()
        if name not in ours and not name.startswith(ignored) and "__pycache__" not in name
    }


@contextmanager
def running(environment: Environment, project: Path, *options: str) -> Iterator[tuple[httpx.Client, Command]]:
    """`omniagent run` in the project, until Ctrl-C."""
    program: list[str | Path] = [environment.folder / "bin" / "omniagent", "run", *options]
    with started(program, project, environment.variables()) as command:
        url = command.read_until("Playground").split()[-1]
        command.read_until("Ctrl-C")
        with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as http:
            yield http, command
        processes = descendants(command.pid)
        command.send(signal.SIGINT)
        code, said = command.end()
        assert (code, said.splitlines()[-1]) == (0, "Stopped.")
        assert still_running(processes) == {}


def kill_chat_functions(command: Command) -> int:
    """End the processes of the chat function, as Lambda might, and return how many there were."""
    killed = 0
    for pid in descendants(command.pid):
        with suppress(OSError):
            if b"_HANDLER=chat.app.handler" in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed


def ask(http: httpx.Client, query: str) -> str:
    response = http.post("/chat", json={"session_id": "s1", "query": query})
    assert response.status_code == 200, response.text
    return response.text


def answers(http: httpx.Client) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = http.get("/sessions/s1/messages").json()["messages"]
    return [message for message in messages if message["role"] == "assistant"]


def build(environment: Environment, project: Path, wheels: Path) -> Path:
    """Run `sam build` for this machine, by a Python that has no omniagent, and return the built template."""
    folder = project / ".build" / "here"
    # Into the cache of SAM everything would be copied once more.
    sam_build: list[str | Path] = [SAM_BIN / "sam", "build", "--no-cached", "--build-dir", folder]
    done = environment.run_in(
        project,
        *sam_build,
        AWS_DEFAULT_REGION="us-east-1",
        SAM_CLI_TELEMETRY="0",
        TARGET_ARCH="here",
        UV=str(UV),
        PYTHON=str(SAM_BIN / "python"),
        PIP_FIND_LINKS=str(wheels),
    )
    assert done.returncode == 0, done.stderr
    return folder / "template.yaml"


def sources(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.py")}


def check_build(project: Path, package: Path) -> None:
    """The layer holds the installed package and no command; the functions hold the project."""
    built = project / ".build" / "here"
    layer = built / "CoreLayer" / "python"
    assert sources(layer / "omniagent") == sources(package)
    assert not list(layer.glob("omniagent_cli*"))
    assert sources(built / "ChatFunction").items() >= sources(project / "functions").items()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
@pytest.mark.timeout(4 * PATIENCE_SECONDS)
@pytest.mark.usefixtures("sam")  # installs SAM
def test_a_project_is_made_run_killed_approved_built_and_upgraded(
    wheel: Path, next_wheel: Path, tmp_path: Path
) -> None:
    environment = new_environment(tmp_path / "venv", f"{wheel}[local]")
    package = next((tmp_path / "venv").glob("lib/python*/site-packages/omniagent"))
    assert environment.run_in(tmp_path, "omniagent", "new", "shop").returncode == 0
    project = tmp_path / "shop"
    # Lambda's Python, which this repository has unpacked already if it is not on the path.
    (project / ".build").mkdir()
    (ROOT / ".build" / "pythons").mkdir(parents=True, exist_ok=True)
    (project / ".build" / "pythons").symlink_to(ROOT / ".build" / "pythons")

    (project / "functions/agent.py").write_text(AGENT)
    (project / "functions/requirements.txt").write_text("tabulate==0.9.0\n")
    (project / "functions/project.py").write_text(f"import tabulate\n{(project / 'functions/project.py').read_text()}")
    (project / "tests/test_agent.py").write_text(TEST)
    tests = environment.run_in(project, "omniagent", "test", "-q")
    assert "1 passed" in tests.stdout, tests.stdout + tests.stderr

    checked = environment.run_in(project, "omniagent", "preflight", "STAGE=prod")
    assert "MongoSecretArn is still the placeholder." in checked.stderr
    assert "prod is not ready: " in checked.stderr

    with running(environment, project) as (http, command):
        assert "15 euros are on their way" in ask(http, "Refund order 1002")
        ask(http, "Refund order 7")
        with suppress(httpx.HTTPError), http.stream("POST", "/chat", json={"session_id": "s1", "query": LONG}) as live:
            for line in live.iter_lines():
                if "text-delta" in line:
                    assert kill_chat_functions(command) > 0
                    break
        while "data: [DONE]" not in http.get("/chat/s1/stream").text:
            time.sleep(0.2)  # until the emulator has noticed that its processes are gone
        assert "on their way" not in ask(http, "Refund order 1001")
        [request] = http.get("/approvals").json()["approvals"]
        assert http.post(f"/chat/approvals/{request['id']}", json={"approved": True}).is_success
        http.get("/chat/s1/stream").read()
        before = answers(http)
    assert [answer["metadata"]["status"] for answer in before] == ["complete"] * 4
    assert "There is no order 7" in str(before[1])
    assert "80 euros are on their way" in str(before[3])

    # The layer would get the installed package. It is built once, after the upgrade: that takes a minute.
    steps = ["make", "-n", "-f", "layers/core/Makefile", "copy", "ARTIFACTS_DIR=built", f"PYTHON={environment.python}"]
    planned = subprocess.run(
        steps, cwd=project, env=environment.variables(), capture_output=True, text=True, check=True
    )
    assert f'cp -R "{package}" ' in planned.stdout

    edited = theirs(project)
    environment.install(f"{next_wheel}[local]")
    upgraded = environment.run_in(project, "omniagent", "upgrade")
    assert upgraded.returncode == 0, upgraded.stderr
    assert theirs(project) == edited
    # pip gets the version that the project names.
    template = build(environment, project, next_wheel.parent)
    check_build(project, package)
    assert '__version__ = "9.0.0"' in (project / ".build/here/CoreLayer/python/omniagent/__init__.py").read_text()

    assert "1 passed" in environment.run_in(project, "omniagent", "test", "ARGS=-q").stdout
    with running(environment, project, "--template", str(template)) as (http, _):
        assert http.get("/local/info").json()["versions"]["omniagent"] == "9.0.0"
        assert answers(http) == before
        assert "15 euros are on their way" in ask(http, "Refund order 1002")
