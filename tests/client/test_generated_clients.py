"""Clients that generators make of the OpenAPI documents work against the whole stack, and their errors have types."""

import asyncio
import json
import subprocess
import sys
import uuid
from pathlib import Path

import httpx
import pytest

from local.background import BackgroundStack
from local.template import ROOT
from tests.client.conftest import HERE, SdkClient
from tests.fixtures.endings import PATIENCE_SECONDS

USES = HERE / "generated"
DOCUMENTS = {"chat": "/chat/openapi.json", "sessions": "/openapi.json"}
_ENVIRONMENT = ROOT / ".venv-openapi"


@pytest.fixture(scope="module")
def documents(stack: BackgroundStack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both documents of `make run`."""
    folder = tmp_path_factory.mktemp("documents")
    with httpx.Client(base_url=stack.url, trust_env=False, timeout=60) as http:
        for name, path in DOCUMENTS.items():
            (folder / f"{name}.json").write_text(json.dumps(http.get(path).raise_for_status().json()))
    return folder


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_python_clients_are_generated_without_a_warning_and_work(stack: BackgroundStack, documents: Path) -> None:
    subprocess.run(["make", ".venv-openapi/.installed", f"PYTHON={sys.executable}"], cwd=ROOT, check=True, timeout=600)
    python = _ENVIRONMENT / "bin" / "python"
    generate: list[str | Path] = [python, "-m", "openapi_python_client", "generate", "--meta", "none"]
    config = documents / "config.json"
    config.write_text(json.dumps({"post_hooks": []}))
    for name in DOCUMENTS:
        output: list[str | Path] = ["--output-path", f"{name}_client", "--config", config]
        log = run(*generate, "--path", f"{name}.json", *output, cwd=documents)
        assert "arning" not in log
    program = (documents / "use.py", stack.url, uuid.uuid4().hex)
    program[0].write_text((USES / "use_python.py").read_text())
    assert run(python, *program, cwd=documents).endswith("used\n")


async def test_typescript_types_are_generated_and_hold(
    sdk: SdkClient,  # its packages are installed
    stack: BackgroundStack,
    documents: Path,
) -> None:
    assert sdk
    (documents / "node_modules").symlink_to(HERE / "node_modules")
    (documents / "package.json").write_text('{"type": "module"}')
    (documents / "use.ts").write_text((USES / "use_typescript.ts").read_text())
    for name in DOCUMENTS:
        await asyncio.to_thread(
            run, "node_modules/.bin/openapi-typescript", f"{name}.json", "-o", f"{name}.ts", cwd=documents
        )
    compiler = ["node_modules/.bin/tsc", "--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck"]
    (documents / "node.d.ts").write_text("declare const process: { argv: string[] };\n")
    await asyncio.to_thread(run, *compiler, "--outDir", "built", "use.ts", "node.d.ts", cwd=documents)
    assert (await asyncio.to_thread(run, "node", "built/use.js", stack.url, uuid.uuid4().hex, cwd=documents)).endswith(
        "used\n"
    )
