"""The repository names no model whose end is announced. `scripts/model_ends.json` lists them, with the dates."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENDS = ROOT / "scripts" / "model_ends.json"
NOT_READ = {"CHANGELOG.md", "package-lock.json", "prices.js", ENDS.name}
"""Also of the past: what a chat cost does not change when its model ends."""
NAMES = "|".join(re.escape(name) for name in json.loads(ENDS.read_text()))
FAMILY = r"""\.?(?:\[[\d-]+\])?\*[`",]"""
ENDED = re.compile(rf"(?<![\w-])(?:{NAMES})(?:-\d{{4}}-\d\d-\d\d)?(?!\w|-\w|\.\d|{FAMILY})")


def lines_of_the_repository() -> Iterator[tuple[str, str]]:
    """Every line of the tracked text files, with its place."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.name in NOT_READ or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            yield f"{name}:{number}", line


def test_no_file_names_a_model_whose_end_is_announced() -> None:
    assert [f"{place}: {found[0]}" for place, line in lines_of_the_repository() if (found := ENDED.search(line))] == []


@pytest.mark.parametrize("end", ['"{}"', "{}.", "openai/{}", "openai.{}", "ft:{}:acme", "{}-2025-04-14", "{},next"])
def test_an_ended_model_is_found_wherever_its_name_stands(end: str) -> None:
    assert ENDED.search(end.format(next(iter(json.loads(ENDS.read_text())))))


def test_a_longer_name_is_another_model_and_a_pattern_is_a_family() -> None:
    others = ("my-{}", "{}-next", "{}.9", "{}x", '"{}*"', "`{}.*`", '"{}.[6-9]*, o9"')
    for end in json.loads(ENDS.read_text()):
        assert not any(ENDED.search(name.format(end)) for name in others)
