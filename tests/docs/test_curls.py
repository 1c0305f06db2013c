"""Every curl command of the documents, run against the whole stack, and the streams that the pages show."""

import os
import re
import shutil
import subprocess

import pytest

from local.background import BackgroundStack
from local.template import ROOT
from tests.docs.blocks import PAGES
from tests.fixtures.endings import PATIENCE_SECONDS

SOURCES = (*PAGES, ROOT / "examples" / "server.py", ROOT / "examples" / "nextjs" / "README.md")
# A command, and what its block shows below it.
_COMMAND = re.compile(r"^ *(?:\$ )?(curl (?:.*\\\n)*.*)\n((?:(?! *(?:\$ )?curl |```).*\n)*)", re.MULTILINE)
_LOCAL = re.compile(r"http://127\.0\.0\.1:\d+")
COMMANDS = [
    pytest.param(found[1], found[2], id=f"{source.relative_to(ROOT)}:{number}")
    for source in SOURCES
    for number, found in enumerate(_COMMAND.finditer(source.read_text()), 1)
]


def test_the_pages_have_commands_and_one_shows_its_stream() -> None:
    pages = {str(command.id).partition(":")[0]: _types(str(command.values[1])) for command in COMMANDS}
    assert "README.md" in pages
    assert pages["docs/api.md"]


@pytest.mark.parametrize(("command", "shown"), COMMANDS)
def test_a_curl_of_the_documents_does_what_its_page_shows(stack: BackgroundStack, command: str, shown: str) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    names = ("TOKEN", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    environment = {**os.environ, **dict.fromkeys(names, "any"), "CHAT_URL": f"{stack.url}/", "no_proxy": "*"}
    line = _LOCAL.sub(stack.url, command) + " -s -w '\n%{http_code}'"
    done = subprocess.run(
        ["sh", "-c", line], env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    body, _, status = done.stdout.rpartition("\n")
    # Nothing waits for a reply here: that is found out after the request was read.
    assert status == "200" or '"code":"unknown_request"' in body, done.stdout
    streamed = iter(_types(body))
    assert all(kind in streamed for kind in _types(shown)), "in this order"


def _types(stream: str) -> list[str]:
    return re.findall(r'^data: \{"type":"([a-z-]+)"', stream, re.MULTILINE)
