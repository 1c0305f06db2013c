"""Type checkers accept the right programs of this folder, and report exactly the marked lines of the wrong ones."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from local.template import ROOT

HERE = Path(__file__).parent
PROGRAMS = sorted([*HERE.glob("right/*.py"), *HERE.glob("wrong/*.py")])
MYPY = [sys.executable, "-m", "mypy", "--hide-error-context", "--no-error-summary", *map(str, PROGRAMS)]
PYRIGHT = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(HERE), "--pythonpath", sys.executable]


def _mypy() -> set[str]:
    """Strict, with the cache and the configuration of `make check`."""
    shown = subprocess.run(MYPY, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return {f"{Path(file).name}:{line}" for file, line in re.findall(r"^(.+?):(\d+): error:", shown, re.MULTILINE)}


def _pyright() -> set[str]:
    shown = subprocess.run(PYRIGHT, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    reports = json.loads(shown)["generalDiagnostics"]
    return {f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}" for each in reports}


def _marked() -> set[str]:
    lines = ((path.name, *line) for path in PROGRAMS for line in enumerate(path.read_text().splitlines(), start=1))
    return {f"{name}:{number}" for name, number, line in lines if line.endswith("# error")}


@pytest.mark.parametrize("reported", [_mypy, _pyright], ids=["mypy", "pyright"])
def test_a_checker_reports_the_marked_lines_and_no_other(reported: Callable[[], set[str]]) -> None:
    assert reported() == _marked()
