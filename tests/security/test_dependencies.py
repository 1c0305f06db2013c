"""What is installed is what was pinned, and what is shipped may be shipped."""

import re
from importlib.metadata import files, metadata
from pathlib import Path

import pytest

from local.template import ROOT
from scripts.licences import THIRD_PARTY, is_allowed, licence_of, rendered
from scripts.pins import FILES, LAYER, read_pins

GOOD = "a==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_requirement_is_one_version_with_hashes(file: Path) -> None:
    assert list(read_pins(file))
    # Options choose where packages come from; the machine that installs does that.
    assert not re.search(r"^\s*-(?!-hash=)", file.read_text(), re.MULTILINE)
    assert "://" not in file.read_text()


@pytest.mark.parametrize(
    "line", ["a>=1.0\n", "a==1.*\n", "a==1.0\n", "a @ https://example.com/a.whl\n", GOOD.replace("==", ">=")]
)
def test_anything_else_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(line)
    with pytest.raises(ValueError, match="not pinned"):
        list(read_pins(file))
    file.write_text(GOOD)
    [pin] = read_pins(file)
    assert (pin.name, pin.version, len(pin.hashes)) == ("a", "1.0", 1)


def test_the_development_environment_has_the_versions_that_are_shipped() -> None:
    dev = {pin.name: pin.version for pin in read_pins(ROOT / "requirements-dev.txt")}
    for pin in read_pins(LAYER):
        assert dev[pin.name] == pin.version


def test_what_make_run_installs_is_a_part_of_the_development_environment() -> None:
    dev = {pin.name: pin.version for pin in read_pins(ROOT / "requirements-dev.txt")}
    run = {pin.name: pin.version for pin in read_pins(ROOT / "requirements-run.txt")}
    assert run.items() <= dev.items()
    assert not {"pytest", "mypy", "ruff", "playwright", "schemathesis", "fastapi"} & run.keys()


def test_the_list_of_third_party_packages_is_up_to_date() -> None:
    assert THIRD_PARTY.read_text() == rendered(), "make licences"


def test_no_licence_asks_more_of_a_program_than_to_keep_its_text() -> None:
    shipped = [pin.name for pin in read_pins(LAYER) if pin.is_in_the_layer]
    assert {name: licence for name in shipped if not is_allowed(licence := licence_of(metadata(name)))} == {}


def test_every_package_of_the_layer_brings_the_text_of_its_licence() -> None:
    for pin in read_pins(LAYER):
        if pin.is_in_the_layer:
            brought = [str(file) for file in files(pin.name) or [] if ".dist-info/" in str(file)]
            assert [file for file in brought if re.search("licen[cs]e|copying", file, re.IGNORECASE)], pin.name


@pytest.mark.parametrize("licence", ["GPL-3.0-or-later", "MIT AND LGPL-2.1", "AGPL-3.0 OR MIT", "unknown", ""])
def test_a_licence_that_is_not_known_to_be_harmless_is_found(licence: str) -> None:
    assert not is_allowed(licence)
