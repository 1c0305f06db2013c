"""The Next.js example and the snippets of the pages under `tsc --strict`."""

import json

from tests.docs.conftest import SNIPPETS
from tests.fixtures.nextjs_example import EXAMPLE


def test_the_nextjs_example_type_checks(type_errors: str) -> None:
    assert [line for line in type_errors.splitlines() if not line.startswith(("page-", " "))] == []


def test_the_snippets_of_the_pages_type_check(type_errors: str) -> None:
    assert {name.split("-")[1] for name in SNIPPETS} == {"README", "frontend"}
    assert [line for line in type_errors.splitlines() if line.startswith("page-")] == []


def test_the_lock_file_names_no_download_address() -> None:
    lock = json.loads((EXAMPLE / "package-lock.json").read_text())
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
