"""The two commands of the README, as a stranger runs them: in a clone, in an environment with little but PATH."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local.template import ROOT
from tests.fixtures.workers import CLOSING_LINES
from tests.local.commands import descendants, still_running

# A first run installs everything from the registries.
INSTALL_SECONDS = 900
# What a machine behind a mirror or a proxy needs to reach its registries.
REGISTRY = ("PIP_", "UV_", "SSL_", "REQUESTS_CA", "HTTP_", "HTTPS_", "http_", "https_", "NO_PROXY", "no_proxy")

pytestmark = [
    pytest.mark.timeout(2 * INSTALL_SECONDS),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]


def environment(home: Path) -> dict[str, str]:
    """An empty one, but for what finds the tools and the registries."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(REGISTRY)}
    return {**kept, "PATH": os.environ["PATH"], "HOME": str(home), "PORT": "0", "PYTHON": sys.executable}


def test_a_clone_runs_and_answers_with_the_two_commands(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    clone = tmp_path / "omniagent"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True, timeout=INSTALL_SECONDS)
    env = environment(tmp_path)
    began = time.monotonic()
    log = tmp_path / "run.log"
    with log.open("w") as output:
        run = subprocess.Popen(
            ["make", "run"], cwd=clone, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    processes = {}
    try:
        curl = _said(run, log, r"Try it +(curl .+)")
        _said(run, log, "(Ctrl-C)")
        processes = descendants(run.pid)
        answer = subprocess.run(curl, shell=True, capture_output=True, text=True, check=True, timeout=60).stdout
        assert "42" in "".join(re.findall(r'"delta":"([^"]*)"', answer))
        assert answer.endswith("data: [DONE]\n\n")
        seconds = time.monotonic() - began
        pytestconfig.stash[CLOSING_LINES].append(f"fresh clone: first answer {seconds:.0f} s after `make run`")
        _said(run, log, r"(\d\d:\d\d:\d\d chat +INFO +turn ended +status=complete turn_number=1 )")
    finally:
        os.killpg(run.pid, signal.SIGINT)  # Ctrl-C
        run.wait(120)
    assert still_running(processes) == {}
    assert "Stopped." in log.read_text().splitlines()
    assert (clone / ".local").is_dir()
    installed = {path.name.partition("-")[0] for path in clone.glob(".venv/lib/python*/site-packages/*.dist-info")}
    assert "moto" in installed
    assert not {"pytest", "mypy", "ruff", "playwright", "schemathesis"} & installed, "not needed by `make run`"
    test = ["make", "test", "ARGS=-q -n 0 tests/test_readme.py"]
    # What is new here is where the packages go. They are those of this machine, if it keeps them.
    env |= {"UV_CACHE_DIR": subprocess.check_output([clone / ".uv/bin/uv", "cache", "dir"], text=True).strip()}
    done = subprocess.run(
        test, cwd=clone, env=env, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    status = subprocess.run(["git", "status", "--short"], cwd=clone, capture_output=True, text=True, check=True)
    assert status.stdout == "", "the commands leave nothing behind that git would see"
    shutil.rmtree(clone)


def _said(run: "subprocess.Popen[bytes]", log: Path, pattern: str) -> str:
    """Wait until the run has printed this, and return its group."""
    deadline = time.monotonic() + INSTALL_SECONDS
    while time.monotonic() < deadline:
        said = log.read_text()
        if found := re.search(pattern, said):
            return found[1]
        assert run.poll() is None, said
        time.sleep(0.2)
    raise AssertionError(f"{pattern!r} was not said: {log.read_text()}")
