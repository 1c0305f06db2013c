"""The `curl` commands for `make run`, run, and the stream that docs/api.md shows."""

import re
import subprocess
from pathlib import Path

import pytest

from local.background import BackgroundStack
from tests.docs.blocks import PAGES, read_blocks
from tests.fixtures.endings import PATIENCE_SECONDS

HERE = "http://127.0.0.1:8000"
COMMAND = re.compile(rf"^(?:\$ )?(curl [^\n]*{re.escape(HERE)}[^\n]*)$", re.MULTILINE)
BLOCKS = {(page, block.line): block.text for page in PAGES for block in read_blocks(page) if COMMAND.search(block.text)}


@pytest.mark.parametrize(("page", "line"), BLOCKS, ids=[f"{page.stem}-{line}" for page, line in BLOCKS])
def test_a_curl_streams_what_the_page_shows(page: Path, line: int, stack: BackgroundStack) -> None:
    text = BLOCKS[page, line]
    [command] = COMMAND.findall(text)
    run = command.replace(HERE, stack.url)
    done = subprocess.run(run, shell=True, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert done.stdout.endswith("data: [DONE]\n\n")
    streamed = iter(_types(done.stdout))
    assert all(kind in streamed for kind in _types(text)), "in this order"


def test_both_pages_have_one() -> None:
    assert {page.name for page, _ in BLOCKS} == {"README.md", "api.md"}


def _types(stream: str) -> list[str]:
    return re.findall(r'^data: \{"type":"([a-z-]+)"', stream, re.MULTILINE)
