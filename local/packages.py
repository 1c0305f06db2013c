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

import omniagent
from local.processes import ServiceError, locked
from local.template import ROOT, Function

ENVIRONMENTS = ROOT / ".build" / "packages"
REQUIREMENTS = "requirements.txt"
LAYER = ROOT / "layers" / "core" / REQUIREMENTS
OMNIAGENT = Path(omniagent.__file__).parent


def environment_of(function: Function) -> Path:
    """Return the virtual environment of a function from source, created if it is missing. May take seconds."""
    layers = [layer / REQUIREMENTS for layer in function.layers if (layer / REQUIREMENTS).exists()]
    # A function without a layer still needs the packages of Lambda's runtime.
    return _environment([*(layers or [LAYER]), function.code / REQUIREMENTS])


def project_environment(*more: Path) -> Path:
    """Return the same for the project's functions, with the packages of further files."""
    return _environment([LAYER, ROOT / "functions" / REQUIREMENTS, *more])


def _environment(wanted: Sequence[Path]) -> Path:
    files = [file for file in wanted if file.exists()]
    folder = ENVIRONMENTS / _digest(files)
    if not _is_made(folder):
        with locked(ENVIRONMENTS):
            if not _is_made(folder):
                _make(folder, files)
    return folder


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"{sys.version} {sys.platform} {OMNIAGENT}".encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _is_made(folder: Path) -> bool:
    return (folder / ".installed").exists()


def _make(folder: Path, files: Sequence[Path]) -> None:
    print("Installing the functions' packages (first run only) ...", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _uv("venv", "--python", sys.executable, str(folder))
    requirements = [option for file in files for option in ("-r", str(file))]
    _uv("pip", "install", "--python", str(folder / "bin" / "python"), "--only-binary", ":all:", *requirements)
    # The layer of a project has no omniagent before it is built: it is the one of this program.
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / OMNIAGENT.name).symlink_to(OMNIAGENT)
    (folder / ".installed").touch()


def _uv(*arguments: str) -> None:
    places = [str(ROOT / ".uv" / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    command = shutil.which("uv", path=os.pathsep.join(places))
    if command is None:
        raise ServiceError("uv is not installed, which installs the functions' packages: pip install uv")
    done = subprocess.run([command, "-q", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServiceError(f"The functions' packages cannot be installed: {done.stderr.strip()}")
