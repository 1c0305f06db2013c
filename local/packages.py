"""The packages of functions: those of their layers and of their own requirements.txt, as on Lambda, and no others.

So functions run in a separate virtual environment, not in this program's, which has moto, pytest and more. It is
created on first use, once for each content of the requirements files.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from local.processes import ServiceError, locked
from local.template import ROOT, Function

ENVIRONMENTS = ROOT / ".build" / "packages"
LAYER = ROOT / "layers" / "core" / "requirements.txt"
REQUIREMENTS = "requirements.txt"


def environment_of(function: Function) -> Path:
    """Return the virtual environment of a function from source, created if it is missing. May take seconds."""
    files = _requirements(function)
    folder = ENVIRONMENTS / _digest(files)
    if not _is_made(folder):
        with locked(ENVIRONMENTS):
            if not _is_made(folder):
                _make(folder, files)
    return folder


def _requirements(function: Function) -> list[Path]:
    layers = [layer / REQUIREMENTS for layer in function.layers if (layer / REQUIREMENTS).exists()]
    own = function.code / REQUIREMENTS
    # A function without a layer still needs the packages of Lambda's runtime.
    return [*(layers or [LAYER]), *([own] if own.exists() else [])]


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"{sys.version} {sys.platform}".encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _is_made(folder: Path) -> bool:
    return (folder / ".installed").exists()


def _make(folder: Path, files: Sequence[Path]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _uv("venv", "--python", sys.executable, str(folder))
    requirements = [option for file in files for option in ("-r", str(file))]
    _uv("pip", "install", "--python", str(folder / "bin" / "python"), "--only-binary", ":all:", *requirements)
    (folder / ".installed").touch()


def _uv(*arguments: str) -> None:
    places = [str(ROOT / ".uv" / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    command = shutil.which("uv", path=os.pathsep.join(places))
    if command is None:
        raise ServiceError("uv is not installed, which installs the functions' packages: make .uv/bin/uv")
    done = subprocess.run([command, "-q", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServiceError(f"The functions' packages cannot be installed: {done.stderr.strip()}")
