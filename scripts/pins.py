"""The pinned dependencies, as the requirements files list them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from local.template import ROOT

LAYER = ROOT / "layers" / "core" / "requirements.txt"
GROUPS = ("audit", "dev", "litellm", "run", "sam", "test", "uv")
FILES = (LAYER, *(ROOT / f"requirements-{group}.txt" for group in GROUPS))
# The Python that the layer is built for. Markers of requirements are evaluated for it.
LAMBDA = {
    "implementation_name": "cpython",
    "platform_machine": "aarch64",
    "platform_python_implementation": "CPython",
    "python_full_version": "3.13.0",
    "python_version": "3.13",
    "sys_platform": "linux",
}
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_CONTINUED = re.compile(r"\\\n\s*")


@dataclass(frozen=True)
class Pin:
    """One requirement with the hashes of the files that may be installed for it."""

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.requirement.name

    @property
    def version(self) -> str:
        return str(self.requirement.specifier).removeprefix("==")

    @property
    def is_in_the_layer(self) -> bool:
        marker = self.requirement.marker
        return marker is None or marker.evaluate(dict(LAMBDA))


def read_pins(file: Path) -> Iterator[Pin]:
    """Yield the requirements of a file. Raises ValueError for a line that is not one version with its hashes."""
    for line in _CONTINUED.sub(" ", file.read_text()).splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        requirement = Requirement(_HASH.sub("", text).strip())
        hashes = tuple(_HASH.findall(text))
        exact = re.fullmatch(r"==[^*,]+", str(requirement.specifier))
        if not exact or requirement.url or not hashes:
            raise ValueError(f"{file.name}: {requirement.name} is not pinned to one version with hashes")
        yield Pin(requirement, hashes)
