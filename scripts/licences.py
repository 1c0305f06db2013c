"""Writes THIRD_PARTY.md, the licences of the layer's packages: `python -m scripts.licences`. A test compares it."""

import re
from importlib.metadata import PackageMetadata, metadata

from local.template import ROOT
from scripts.pins import LAYER, read_pins

THIRD_PARTY = ROOT / "THIRD_PARTY.md"
# These impose no conditions on a program that only uses the package. MPL-2.0 does on changed files of the package.
ALLOWED = frozenset(
    {"AFL-2.1", "Apache-2.0", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "BSD-2-Clause"}
)
# How packages without an SPDX expression name their licence.
_SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
_MAX_NAME_LENGTH = 40
_HOMES = ("source", "repository", "source code", "homepage", "documentation")


def licence_of(package: PackageMetadata) -> str:
    """Return the licence as an SPDX expression, or the package's own name for it if that is unknown."""
    if expression := field("License-Expression", package):
        return expression
    named = field("License", package)
    if 0 < len(named) <= _MAX_NAME_LENGTH and named != "Dual License":
        return _SPDX.get(named, named)
    classifiers = [line for line in package.get_all("Classifier") or [] if line.startswith("License ::")]
    names = (line.rpartition(" :: ")[2] for line in classifiers)
    return " OR ".join(_SPDX.get(name, name) for name in names) or "unknown"


def is_allowed(licence: str) -> bool:
    """Whether every alternative and every part of an expression is allowed."""
    return all(part in ALLOWED for part in re.split(r" OR | AND ", licence))


def home_of(package: PackageMetadata) -> str:
    links = {}
    for line in package.get_all("Project-URL") or []:
        name, _, url = line.partition(",")
        links[name.strip().lower()] = url.strip()
    return next((links[name] for name in _HOMES if name in links), field("Home-page", package))


def field(name: str, package: PackageMetadata) -> str:
    return package[name].strip() if name in package else ""


def rendered() -> str:
    """Return THIRD_PARTY.md for the packages of this environment."""
    pins = [pin for pin in read_pins(LAYER) if pin.is_in_the_layer]
    rows = []
    for pin in sorted(pins, key=lambda pin: pin.name):
        package = metadata(pin.name)
        if package["Version"] != pin.version:
            raise ValueError(f"{pin.name} {package['Version']} is installed, {pin.version} is pinned")
        home = home_of(package)
        name = f"[{pin.name}]({home})" if home else pin.name
        rows.append(f"| {name} | {pin.version} | {licence_of(package)} |")
    return "\n".join([_HEAD.format(count=len(rows)), *rows, ""])


_HEAD = """\
# Third-party packages

The layer ships these {count} packages, each with the text of its licence in its `.dist-info` folder. `make licences`
makes this list from the packages' own metadata. A test holds it against the pinned versions, and refuses a licence
that asks more of a program than to keep the licence's text with the package.

The playground's page, which is not deployed, bundles npm packages (`local/vendor/package.json`). Their licences are in
[local/playground/vendor/LICENCES.txt](local/playground/vendor/LICENCES.txt). Its list prices of models are the data of
`genai-prices` ([MIT](local/playground/vendor/PRICES-LICENCE.txt)), written by `make prices`.

| package | version | licence |
|---|---|---|"""


if __name__ == "__main__":
    THIRD_PARTY.write_text(rendered())
