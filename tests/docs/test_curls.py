"""Every curl command of the documents, run against the whole stack."""

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
_COMMAND = re.compile(r"^ *(?:\$ )?(curl (?:.*\\\n)*.*)", re.MULTILINE)
_LOCAL = re.compile(r"http://127\.0\.0\.1:\d+")
COMMANDS = [
    pytest.param(found[1], id=f"{source.relative_to(ROOT)}:{number}")
    for source in SOURCES
    for number, found in enumerate(_COMMAND.finditer(source.read_text()), 1)
]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS)
def test_a_curl_of_the_documents_is_understood(stack: BackgroundStack, command: str) -> None:
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
