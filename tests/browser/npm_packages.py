"""The JavaScript packages of the browser tests, as hook/package-lock.json pins them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD_SECONDS = 60
REACT = ("--jsx=automatic", '--define:process.env.NODE_ENV="production"')
"""Options of `bundle` for a page with React in it."""
FOLDER = Path(__file__).parent / "hook"
INSTALL_SECONDS = 600


def sdk_aliases(version: int) -> list[str]:
    """Options of `bundle` for a page with this version of the AI SDK: 5, 6 or 7."""
    if version == 6:
        return []
    names = {"ai": f"ai-v{version}", "@ai-sdk/react": f"react-v{version}"}
    return [f"--alias:{name}={installed(alias).name}" for name, alias in names.items()]


def installed(package: str) -> Path:
    """Return the folder of a package. All are installed when it is missing."""
    if not shutil.which("npm"):
        pytest.skip(f"npm is not installed: {package} cannot be had")
    folder = FOLDER / "node_modules" / package
    if not folder.is_dir():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=FOLDER, check=True, timeout=INSTALL_SECONDS)
    return folder


def bundle(entry: Path, script: Path, *options: str, packages: Path = FOLDER / "node_modules") -> None:
    """Make one script of a module and all that it imports, from these packages."""
    installed("esbuild")
    command = [str(FOLDER / "node_modules/.bin/esbuild"), str(entry), "--bundle", "--format=esm", f"--outfile={script}"]
    environment = {**os.environ, "NODE_PATH": str(packages)}
    subprocess.run([*command, "--log-level=warning", *options], env=environment, check=True, timeout=BUILD_SECONDS)
