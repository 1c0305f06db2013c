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


REPORT = """#!/usr/bin/env python3
import json, sys
vulns = [{{"id": "CVE-1"}}]
canary, other, error = {canary}, {other}, {error!r}
if error:
    sys.exit(error)
mine = canary if "canary" in sys.argv[-1] else other
print(json.dumps({{"dependencies": [{{"name": "p", "version": "1", **mine}}]}}))
"""
KNOWN, CLEAN, SKIPPED = '{"vulns": vulns}', '{"vulns": []}', '{"skip_reason": "could not be audited"}'


@pytest.mark.parametrize(
    ("canary", "other", "error", "code", "said"),
    [
        (KNOWN, CLEAN, "", 0, "none known in 8 sets of pins"),
        (KNOWN, KNOWN, "", 1, "FAILED: p 1: CVE-1"),
        (KNOWN, SKIPPED, "", 3, "NOT CHECKED: skipped: p"),
        (CLEAN, CLEAN, "", 3, "NOT CHECKED: the advisory service does not know the vulnerabilities of jinja2==2.4.1"),
        (SKIPPED, SKIPPED, "", 3, "NOT CHECKED: the advisory service"),
        (KNOWN, CLEAN, "ConnectionError: no route", 3, "NOT CHECKED: ConnectionError: no route"),
    ],
)
def test_the_exit_code_says_whether_somebody_looked(
    *,
    canary: str,
    other: str,
    error: str,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = tmp_path / "pip-audit"
    command.write_text(REPORT.format(canary=canary, other=other, error=error))
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
