"""`make audit`: what could not be checked is no success, and the bill of materials lists what the layer ships."""

import json
import re
import shutil
from pathlib import Path

import pytest

from scripts import audit, sbom
from scripts.pins import LAYER, read_pins


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bill is written where it disturbs nobody."""
    monkeypatch.setitem(audit.CHECKS, "sbom", lambda: str(sbom.write(tmp_path / "sbom.cdx.json")))


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("exit 0", 0, "none known"),
        ("echo 'Found 1 known vulnerability in 1 package'; exit 1", 1, "FAILED"),
        ("echo 'ConnectionError: no route' >&2; exit 1", 3, "NOT CHECKED: ConnectionError: no route"),
    ],
)
def test_the_exit_code_says_whether_somebody_looked(
    *,
    script: str,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = tmp_path / "pip-audit"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: str(command))
    assert audit.main() == code
    assert said in capsys.readouterr().out


def test_without_pip_audit_nothing_is_taken_for_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert audit.main() == audit.NOT_CHECKED


def test_the_bill_of_materials_lists_what_the_layer_ships(tmp_path: Path) -> None:
    bill = json.loads(sbom.write(tmp_path / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])
    shipped = {(pin.name, pin.version) for pin in read_pins(LAYER) if pin.is_in_the_layer}
    assert {(item["name"], item["version"]) for item in bill["components"]} == shipped
    for item in bill["components"]:
        assert item["purl"] == f"pkg:pypi/{item['name'].lower()}@{item['version']}"
        assert item["licenses"][0]["expression"] != "unknown"
        [files] = item["externalReferences"]
        assert all(re.fullmatch(r"[0-9a-f]{64}", each["content"]) for each in files["hashes"])
    [tree] = bill["dependencies"]
    assert tree["dependsOn"] == [item["bom-ref"] for item in bill["components"]]
