"""Two releases at the same time, as during a canary and after a rollback: one MongoDB, one turn table, two versions.

The older one is the commit in BASELINE: the first one whose stored data today's release has to read. Its functions run
from its own source, with its own layer and packages.
"""

import subprocess
import tarfile
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Literal

import pytest
from pymongo import MongoClient

from local.aws import Aws
from local.model import OfflineModel
from local.template import ROOT
from tests.fixtures.calls import Json, User
from tests.fixtures.product import Product, running_product

BASELINE = Path(__file__).with_name("BASELINE").read_text().strip()
Version = Literal["older", "today"]


class Releases:
    """The same user of the same session, as a caller of each version."""

    def __init__(self, products: dict[Version, Product]) -> None:
        self.products = products

    def callers(self, *versions: Version) -> list[User]:
        """Return a new user, once for each of these versions."""
        user = self.products["today"].user()
        return [replace(user, emulator=self.products[version].emulator) for version in versions]

    async def settled(self) -> None:
        """Wait until no invocation runs."""
        for product in self.products.values():
            await product.emulator.settled()


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the older release."""
    if _git("rev-parse", "--is-shallow-repository") != b"false\n":
        pytest.skip("this copy has no history")
    archive = _git("archive", BASELINE)
    assert archive, f"the history has no commit {BASELINE}"
    folder = tmp_path_factory.mktemp("baseline")
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
async def releases(baseline: Path, mongod: str, model: OfflineModel) -> AsyncIterator[Releases]:
    database = f"releases_{uuid.uuid4().hex[:12]}"
    options = {
        "functions": ("chat", "sessions", "summary", "run"),
        "parameters": {"MongoDatabase": database},
        "environment": {"CONTEXT_MAX_TURNS": "6", "LEASE_SECONDS": "3"},
        # No queue is polled and nothing sweeps: a test says which version does a job.
        "emulator": {"sqs": None, "schedule_seconds": 3600},
    }
    with Aws() as cloud, MongoClient[Json](mongod) as client:
        async with AsyncExitStack() as stack:
            older = running_product(mongod, cloud, model, template=baseline / "template.yaml", **options)
            today = running_product(mongod, cloud, model, **options)
            yield Releases(
                {"older": await stack.enter_async_context(older), "today": await stack.enter_async_context(today)}
            )
        client.drop_database(database)


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False).stdout
