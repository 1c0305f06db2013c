"""The wheel, built from this repository, and environments that have nothing else."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from local.template import ROOT
from tests.fixtures.endings import PATIENCE_SECONDS

UV = ROOT / ".uv" / "bin" / "uv"
VERSION = re.compile(r'^__version__ = ".*"$', re.MULTILINE)


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self, *packages: str) -> None:
        run_uv("pip", "install", "--python", str(self.python), *packages)

    def run(self, *command: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment and return what it said."""
        return self.run_in(self.folder, *command, **variables)

    def run_in(self, cwd: Path, *command: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run it in another folder."""
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *map(str, command[1:])],
            cwd=cwd,
            env=self.variables(**variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of somebody who has activated it, without what leads to this repository or to AWS."""
        hidden = ("AWS_", "MAKE", "MFLAGS", "PYTHON", "VIRTUAL_ENV", "COV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return kept | {"PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PORT": "0"} | more


def run_uv(*arguments: str) -> None:
    # What is installed shares its files with uv's cache.
    done = subprocess.run([str(UV), "-q", *arguments], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr


def new_environment(folder: Path, *packages: str) -> Environment:
    """Create an environment with these packages and what they need."""
    run_uv("venv", "--python", sys.executable, str(folder))
    environment = Environment(folder)
    environment.install(*packages)
    return environment


def build(folder: Path, source: Path = ROOT) -> Path:
    """Build the wheel into a folder."""
    run_uv("build", "--wheel", "--out-dir", str(folder), str(source))
    [wheel] = folder.glob("*.whl")
    return wheel


def copy_sources(folder: Path) -> Path:
    """Copy everything that git has, as it is now."""
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("bench/", "examples/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder
