"""The layer's CycloneDX bill of materials: names, versions, hashes and licences of its packages."""

import json
import tomllib
import uuid
from datetime import UTC, datetime
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import omniagent
from local.template import ROOT
from scripts.licences import licence_of
from scripts.pins import LAYER, Pin, read_pins

SBOM = ROOT / ".build" / "sbom.cdx.json"
SPEC_VERSION = "1.6"


def bill_of_materials() -> dict[str, Any]:
    """Return the document. Packages come from the pinned requirements, licences from the packages' own metadata."""
    pins = sorted((pin for pin in read_pins(LAYER) if pin.is_in_the_layer), key=lambda pin: pin.name)
    product = _product()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"timestamp": datetime.now(UTC).isoformat(timespec="seconds"), "component": product},
        "components": [_component(pin) for pin in pins],
        "dependencies": [{"ref": product["bom-ref"], "dependsOn": [_purl(pin) for pin in pins]}],
    }


def _product() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        "type": "application",
        "bom-ref": f"{project['name']}@{omniagent.__version__}",
        "name": project["name"],
        "version": omniagent.__version__,
        "licenses": [{"expression": project["license"]}],
    }


def _component(pin: Pin) -> dict[str, Any]:
    # Each hash is of one file that may be installed; the platform determines which one is.
    files = [{"type": "distribution", "url": _purl(pin), "hashes": [_hash(text) for text in pin.hashes]}]
    return {
        "type": "library",
        "bom-ref": _purl(pin),
        "name": pin.name,
        "version": pin.version,
        "purl": _purl(pin),
        "licenses": [{"expression": licence_of(metadata(pin.name))}],
        "externalReferences": files,
    }


def _purl(pin: Pin) -> str:
    return f"pkg:pypi/{pin.name.lower().replace('_', '-')}@{pin.version}"


def _hash(text: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": text.removeprefix("--hash=sha256:")}


def write(path: Path = SBOM) -> Path:
    """Write the document and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill_of_materials(), indent=2) + "\n")
    return path
