"""The JavaScript packages of the browser tests, as hook/package-lock.json pins them."""

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "hook"
INSTALL_SECONDS = 600


def installed(package: str) -> Path:
    """Return the folder of a package. All are installed when it is missing."""
    if not shutil.which("npm"):
        pytest.skip(f"npm is not installed: {package} cannot be had")
    folder = FOLDER / "node_modules" / package
    if not folder.is_dir():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=FOLDER, check=True, timeout=INSTALL_SECONDS)
    return folder
