"""The Next.js example and the README's front end under `tsc --strict`."""

import json

from local.template import ROOT
from tests.docs.blocks import read_blocks
from tests.docs.conftest import EXAMPLE


def test_the_nextjs_example_type_checks(type_errors: str) -> None:
    assert [line for line in type_errors.splitlines() if not line.startswith(("readme-", " "))] == []


def test_the_snippets_of_the_readme_type_check(type_errors: str) -> None:
    assert any(block.language == "tsx" for block in read_blocks(ROOT / "README.md"))
    assert [line for line in type_errors.splitlines() if line.startswith("readme-")] == []


def test_the_lock_file_names_no_download_address() -> None:
    lock = json.loads((EXAMPLE / "package-lock.json").read_text())
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
