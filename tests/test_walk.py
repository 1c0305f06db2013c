"""The way of a request through the package stays short."""

import os
import subprocess
import sys

from local.template import ROOT
from tests.fixtures.endings import PATIENCE_SECONDS


def test_a_chat_request_enters_no_more_functions_than_make_walk_allows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.walk"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "layers/core")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
