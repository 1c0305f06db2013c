"""A deployment to follow the pages on, and the Next.js example's packages, installed once and kept in .build."""

import hashlib
import shutil
import subprocess
from collections.abc import AsyncIterator

import pytest

from local.aws import Aws
from local.model import OfflineModel
from local.template import ROOT
from tests.docs.blocks import PAGES, read_blocks
from tests.fixtures.endings import PATIENCE_SECONDS
from tests.fixtures.product import Product, running_product

EXAMPLE = ROOT / "examples" / "nextjs"
COPY = ROOT / ".build" / "nextjs"
# What tsc knows of files that have not changed since the last run: most are types of packages.
BUILD_INFO = "node_modules/.tsbuildinfo"
SNIPPETS = {
    f"page-{page.stem}-{block.line}.tsx": block.text
    for page in PAGES
    for block in read_blocks(page)
    if block.language == "tsx"
}
NOT_COPIED = ("node_modules", ".next", "next-env.d.ts", "*.tsbuildinfo", ".env.local")


@pytest.fixture(scope="module")
async def product(mongod: str, aws: Aws, model: OfflineModel) -> AsyncIterator[Product]:
    """A deployment that wants signatures."""
    async with running_product(mongod, aws, model, emulator={"sqs": None}) as product:
        yield product


@pytest.fixture(scope="session")
def type_errors() -> str:
    """What `tsc --strict` says of the example and of the pages' snippets. They are one program in a copy."""
    if not shutil.which("npm"):
        pytest.skip("Node is not installed: TypeScript cannot be checked")
    _install()
    for old in COPY.iterdir():
        if old.name != "node_modules":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    shutil.copytree(EXAMPLE, COPY, ignore=shutil.ignore_patterns(*NOT_COPIED), dirs_exist_ok=True)
    for name, snippet in SNIPPETS.items():
        (COPY / name).write_text(snippet)
    checked = subprocess.run(
        ["node", "node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--tsBuildInfoFile", BUILD_INFO],
        cwd=COPY,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert checked.returncode == 0 or checked.stdout, checked.stderr
    return checked.stdout


def _install() -> None:
    """`npm ci` where the lock file has changed. The compilers of other platforms are left out: only types are read."""
    lock = (EXAMPLE / "package-lock.json").read_bytes()
    stamp = COPY / "node_modules" / ".lock-hash"
    wanted = hashlib.sha256(lock).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    COPY.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(EXAMPLE / name, COPY / name)
    options = ["--omit=optional", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund"]
    subprocess.run(["npm", "ci", *options], cwd=COPY, check=True, timeout=PATIENCE_SECONDS)
    stamp.write_text(wanted)
