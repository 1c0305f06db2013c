"""`make audit`: checks the pinned dependencies. A check that could not be made counts as a failure."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from local.template import ROOT
from scripts.licences import THIRD_PARTY, is_allowed, licence_of, rendered
from scripts.pins import FILES, LAYER, read_pins
from scripts.sbom import write

CANARY = "jinja2==2.4.1"


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
    """Run pip-audit on every pinned set. First on a package with known vulnerabilities, which must be found."""
    with TemporaryDirectory() as folder:
        canary = Path(folder) / "canary.txt"
        canary.write_text(f"{CANARY}\n")
        if not any(dependency.get("vulns") for dependency in _audited(canary, "--no-deps")):
            raise NotChecked(f"the advisory service does not know the vulnerabilities of {CANARY}")
    found, skipped = set(), set()
    for file in FILES:
        for dependency in _audited(file, "--require-hashes"):
            if "skip_reason" in dependency:
                skipped.add(dependency["name"])
            found |= {
                f"{dependency['name']} {dependency['version']}: {each['id']}" for each in dependency.get("vulns", ())
            }
    if found:
        raise ValueError(", ".join(sorted(found)))
    if skipped:
        raise NotChecked(f"skipped: {', '.join(sorted(skipped))}")
    return f"none known in {len(FILES)} sets of pins"


def _audited(file: Path, option: str) -> list[dict[str, Any]]:
    """Return what pip-audit reports of each package. It exits with 0 also if it looked none up."""
    command = shutil.which("pip-audit", path=f"{ROOT / '.venv-audit' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if command is None:
        raise NotChecked("pip-audit is not installed: `make audit` installs it")
    arguments = [command, "--disable-pip", "--progress-spinner=off", "-f", "json", option, "-r", str(file)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    try:
        dependencies: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        raise NotChecked(done.stderr.strip().rpartition("\n")[2] or "pip-audit reported nothing") from None
    return dependencies


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
