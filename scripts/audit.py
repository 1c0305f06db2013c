"""`make audit`: checks the pinned dependencies. A check that could not be made counts as a failure."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import metadata

from local.template import ROOT
from scripts.licences import THIRD_PARTY, is_allowed, licence_of, rendered
from scripts.pins import FILES, LAYER, read_pins
from scripts.sbom import write


def pins() -> str:
    """Check that every requirement is pinned to one version with hashes, and none to a URL."""
    counts = {file.relative_to(ROOT): sum(1 for _ in read_pins(file)) for file in FILES}
    return ", ".join(f"{file}: {count} pinned with hashes" for file, count in counts.items())


def licences() -> str:
    """Check that THIRD_PARTY.md is up to date, and that every licence is allowed."""
    if not THIRD_PARTY.exists() or THIRD_PARTY.read_text() != rendered():
        raise ValueError("THIRD_PARTY.md is out of date: make licences")
    shipped = [pin.name for pin in read_pins(LAYER) if pin.is_in_the_layer]
    found = {name: licence_of(metadata(name)) for name in shipped}
    if unknown := {name: licence for name, licence in found.items() if not is_allowed(licence)}:
        raise ValueError(f"not on the list of licences: {unknown}")
    return f"{len(found)} packages, every licence allowed"


class NotChecked(Exception):
    """A check could not be made. The message says why."""


def vulnerabilities() -> str:
    """Run pip-audit on the layer. It needs a service that is not always reachable."""
    command = shutil.which("pip-audit", path=f"{ROOT / '.venv-audit' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if command is None:
        raise NotChecked("pip-audit is not installed: `make audit` installs it")
    done = subprocess.run(
        [command, "--disable-pip", "--require-hashes", "--progress-spinner=off", "-r", str(LAYER)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return "none known"
    told = f"{done.stdout}\n{done.stderr}".strip()
    if "known vulnerabilit" in told:
        raise ValueError(f"\n{told}")
    raise NotChecked(told.splitlines()[-1])


def sbom() -> str:
    """Write the bill of materials."""
    return f"written to {write().relative_to(ROOT)}"


CHECKS = {"pins": pins, "licences": licences, "sbom": sbom, "vulnerabilities": vulnerabilities}
FAILED, NOT_CHECKED = 1, 3


def main() -> int:
    """Run every check. The exit code is 1 if one failed, otherwise 3 if one could not be made."""
    codes = {0}
    for name, check in CHECKS.items():
        try:
            print(f"{name:16} {check()}")
        except NotChecked as reason:
            codes.add(NOT_CHECKED)
            print(f"{name:16} NOT CHECKED: {reason}")
        except ValueError as error:
            codes.add(FAILED)
            print(f"{name:16} FAILED: {error}")
    return FAILED if FAILED in codes else max(codes)


if __name__ == "__main__":
    sys.exit(main())
