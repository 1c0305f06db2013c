"""Every Python block of the README and the docs runs."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from local.template import ROOT
from tests.docs.blocks import PAGES, read_blocks
from tests.fixtures.endings import PATIENCE_SECONDS

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
RUN = [page for page in PAGES if any(block.runs for block in read_blocks(page))]
_LEADS_AWAY = ("OPENAI_", "AWS_", "MONGODB_", "OTEL_")


def run(page: Path, mongod: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LEADS_AWAY)}
    database = f"docs-{uuid.uuid4().hex[:8]}"
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.docs.run_page", str(page)],
        cwd=ROOT,
        env={**kept, "MONGODB_URI": mongod, "MONGODB_DATABASE": database, "PYTHONPATH": str(ROOT / "layers/core")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.parametrize("page", RUN, ids=[page.name for page in RUN])
def test_every_python_block_of_the_page_runs(page: Path, mongod: str) -> None:
    done = run(page, mongod)
    assert done.returncode == 0, done.stderr
    expected = sum(block.runs for block in read_blocks(page))
    assert done.stdout.splitlines()[-1] == str(expected)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    for block in read_blocks(page):
        if block.language == "python" and not block.runs:
            assert block.has_reason, f"{page.name}:{block.line}: put <!-- no-run: the reason --> before the block"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_names_its_language(page: Path) -> None:
    """A block without a language, or with a misspelt one, would be skipped in silence."""
    known = {"python", "tsx", "ts", "sh", "console", "json", "yaml", "mermaid", "text"}
    for block in read_blocks(page):
        assert block.language in known, f"{page.name}:{block.line}: {block.language!r}"
