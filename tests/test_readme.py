"""The README against the repository: every table, command and link in it is real."""

import re

from local.template import ROOT
from scripts.readme import README, rendered

TEXTS = {path.name: path.read_text() for path in (README, ROOT / "CONTRIBUTING.md")}


def test_the_tables_are_those_of_the_code() -> None:
    assert rendered(TEXTS["README.md"]) == TEXTS["README.md"], "run `make readme`"


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for text in TEXTS.values():
        named = set(re.findall(r"(?:^|`|… )make ([a-z][a-z-]+)", text, re.MULTILINE))
        assert named
        assert named <= targets


def test_every_link_leads_to_a_file() -> None:
    for text in TEXTS.values():
        for target in re.findall(r"\]\(([^)]+)\)", text):
            assert (ROOT / target).exists(), target


def test_every_path_that_is_named_exists() -> None:
    for text in TEXTS.values():
        for path in re.findall(r"`((?:functions|tests|events|local|bench|layers|parameters|examples)/[\w./-]*)`", text):
            assert (ROOT / path).exists(), path


def test_the_sections_stand_in_the_order_a_newcomer_needs_them() -> None:
    headings = re.findall(r"^## (.+)$", TEXTS["README.md"], re.MULTILINE)
    assert headings == [
        "Try it",
        "Write an agent",
        "Deploy",
        "Configuration",
        "API and protocol",
        "Limits and costs",
        "Decisions",
    ]
