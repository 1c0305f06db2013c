"""The two commands of the README, as a stranger runs them: in a clone, in an environment with little but PATH."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.fresh_clone import INSTALL_SECONDS, environment, make_clone, running
from tests.local.commands import descendants, still_running

pytestmark = [
    pytest.mark.timeout(2 * INSTALL_SECONDS),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]


def test_a_clone_runs_and_answers_with_the_two_commands(tmp_path: Path) -> None:
    clone = make_clone(tmp_path)
    with running(clone) as run:
        processes = descendants(run.pid)
        assert "42" in "".join(re.findall(r'"delta":"([^"]*)"', run.answer))
        assert run.answer.endswith("data: [DONE]\n\n")
        run.said(r"(\d\d:\d\d:\d\d chat +INFO +turn ended +status=complete turn_number=1 )")
    assert still_running(processes) == {}
    assert (clone / ".local").is_dir()
    installed = {path.name.partition("-")[0] for path in clone.glob(".venv/lib/python*/site-packages/*.dist-info")}
    assert "moto" in installed
    assert not {"pytest", "mypy", "ruff", "playwright", "schemathesis"} & installed, "not needed by `make run`"
    test = ["make", "test", "ARGS=-q -n 0 tests/test_readme.py"]
    # What is new here is where the packages go. They are those of this machine, if it keeps them.
    cache = subprocess.check_output([clone / ".uv/bin/uv", "cache", "dir"], text=True).strip()
    done = subprocess.run(
        test,
        cwd=clone,
        env=environment(tmp_path) | {"UV_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    status = subprocess.run(["git", "status", "--short"], cwd=clone, capture_output=True, text=True, check=True)
    assert status.stdout == "", "the commands leave nothing behind that git would see"
    shutil.rmtree(clone)
