"""The npm packages in the playground's page."""

import shutil
import subprocess
from pathlib import Path

import pytest

from local.front import PLAYGROUND
from local.template import ROOT

SECONDS = 300


def test_the_committed_bundle_is_what_the_pinned_packages_make(tmp_path: Path) -> None:
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    folder = tmp_path / "vendor"
    shutil.copytree(ROOT / "local" / "vendor", folder, ignore=shutil.ignore_patterns("node_modules"))
    for command in (["npm", "ci", "--no-audit", "--no-fund"], ["npm", "run", "build"]):
        subprocess.run(command, cwd=folder, check=True, timeout=SECONDS)
    for file in (tmp_path / "playground" / "vendor").iterdir():
        assert file.read_bytes() == (PLAYGROUND / "vendor" / file.name).read_bytes(), "make vendor"
