"""`make indexes`: a release adds an index to 1,000,000 messages, and every request meanwhile is served.

Not part of `make test`, which has a small one in tests/persistence: it takes two minutes. MESSAGES sets another number.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from pymongo import MongoClient

from local.aws import Aws
from local.model import OfflineModel
from local.mongod import Mongod
from tests.fixtures.calls import Json, eventually
from tests.fixtures.functions import functions_with
from tests.fixtures.product import Product, running_product

MESSAGES = int(os.environ.get("MESSAGES", "1000000"))
BATCH = 10_000
INDEX = "excerpt_1_session_id_1"
PROJECT = """
from typing import Any, ClassVar

from agent import agent
from omniagent import DocumentModels, Project
from omniagent.persistence.documents import Message


class Excerpted(Message):
    excerpt: str = ""

    class Settings(Message.Settings):
        indexes: ClassVar[list[Any]] = [*Message.Settings.indexes, [("excerpt", 1), ("session_id", 1)]]


project = Project(agent=agent, documents=DocumentModels(message=Excerpted))
"""

pytestmark = pytest.mark.timeout(1800)


async def test_no_request_fails_while_an_index_is_built(cloud: Aws, model: OfflineModel, tmp_path: Path) -> None:
    code = functions_with(tmp_path, project=PROJECT)
    with Mongod() as mongod, MongoClient[Json](mongod.uri) as client:
        options = {"emulator": {"sqs": None}, "environment": {"MONGODB_TIMEOUT_SECONDS": "3"}}
        async with running_product(mongod.uri, cloud, model, **options) as before:
            assert (await before.user().ask("Hello"))[-1]["data"]["status"] == "complete"
            name = before.database.name
            await asyncio.to_thread(fill, client, name)
            options |= {"parameters": {"MongoDatabase": name}, "change": lambda function: function.having(code=code)}
            async with running_product(mongod.uri, cloud, model, **options) as after:
                counts: Counter[str] = Counter()
                began = time.monotonic()
                building = asyncio.create_task(migrate(after))
                while not building.done():
                    await cold_start(after, counts)
                await building
                seconds = time.monotonic() - began
                assert INDEX in client[name].messages.index_information()
    print(f"\n{MESSAGES:,} messages, index built in {seconds:.0f} s, cold starts meanwhile: {dict(counts)}")
    assert set(counts) == {"complete"}


async def migrate(product: Product) -> None:
    """Do what `make migrate` does."""
    status = ""
    while status != "indexed":
        done = await product.emulator.invoke("summary", json.dumps({"indexes": True}).encode())
        assert done.error_type is None, done
        status = json.loads(done.payload)["status"]


async def cold_start(product: Product, counts: Counter[str]) -> None:
    """Run a turn in a new process."""
    user = product.user()
    response = await user.call("POST", "/chat?stream=false", json={"session_id": user.session, "query": "Hello"})
    counts[response.json()["status"] if response.is_success else response.text] += 1
    for process in product.emulator.processes("chat"):
        product.emulator.kill(process.pid)
    await eventually(lambda: not product.emulator.processes("chat"))


def fill(client: "MongoClient[Json]", name: str) -> None:
    """Store messages as an earlier release might have, each in a session of its own."""
    seeded = random.Random(1)
    for start in range(0, MESSAGES, BATCH):
        client[name].messages.insert_many(
            {
                "_id": f"m{number}",
                "session_id": f"nobody:{number}",
                "client_message_id": f"m{number}",
                "excerpt": seeded.randbytes(100).hex(),
            }
            for number in range(start, min(start + BATCH, MESSAGES))
        )
