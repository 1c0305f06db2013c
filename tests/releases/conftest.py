"""Two releases at the same time, as during a canary and after a rollback: one MongoDB, one turn table, two versions.

The older one is the commit in BASELINE: the first one whose stored data today's release has to read. Its functions run
from its own source, with its own layer and packages.
"""

import subprocess
import tarfile
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Literal

import pytest

from local.aws import Aws
from local.model import OfflineModel
from local.template import ROOT
from tests.fixtures.calls import User
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

    def let_lease_pass(self, user: User) -> None:
        """Make what the user's turn has left behind older than a lease."""
        product, past = self.products["today"], datetime.now(UTC) - timedelta(hours=1)
        dynamodb = product.aws.dynamodb
        product.database.sessions.update_one({"_id": user.key}, {"$set": {"turn.since": past}})
        [table] = dynamodb.list_tables()["TableNames"]
        for item in dynamodb.scan(TableName=table, ConsistentRead=True)["Items"]:
            if item["session_id"]["S"] == user.key and item["item"]["S"].startswith("journal#"):
                aged = item | {"at": {"N": str(past.timestamp())}}
                dynamodb.put_item(TableName=table, Item=aged)

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
    options = {
        "functions": ("chat", "sessions", "summary", "run"),
        "parameters": {"MongoDatabase": f"releases_{uuid.uuid4().hex[:12]}"},
        "environment": {"CONTEXT_MAX_TURNS": "6"},
        # No queue is polled and nothing sweeps: a test says which version does a job.
        "emulator": {"sqs": None, "schedule_seconds": 3600},
    }
    with Aws() as cloud:
        async with (
            running_product(mongod, cloud, model, template=baseline / "template.yaml", **options) as older,
            running_product(mongod, cloud, model, **options) as today,
        ):
            yield Releases({"older": older, "today": today})


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False).stdout
