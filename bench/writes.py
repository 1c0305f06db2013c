"""Counts the DynamoDB write units of one turn while it runs."""

import asyncio
import math
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from bench.figure import Figure
from local.aws import Aws
from local.model import OfflineModel
from local.mongod import Mongod
from local.template import Template
from omniagent import Agent, MongoBackendAdapter, MongoSessionManager, Runner, Settings
from omniagent.aws.credentials import Credentials
from omniagent.aws.json_api import DYNAMODB, AwsJson
from omniagent.aws.turn_table import DynamoRegistry
from omniagent.providers import get_llm_provider
from scripts.readme import TURN_SECONDS, write_units

TOKENS_PER_SECOND = 50


class CountingApi(AwsJson):
    """Counts write units: one per write, and per started kilobyte of a new item."""

    units = 0

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        self._count(operation, arguments)
        return await super().call(operation, **arguments)

    def _count(self, operation: str, arguments: Mapping[str, Any]) -> None:
        if operation in {"PutItem", "UpdateItem", "DeleteItem"}:
            self.units += max(1, math.ceil(_size(arguments.get("Item", {})) / 1024))


def _size(item: dict[str, dict[str, str]]) -> int:
    """Return the size of an item: its names and values, with binary values decoded."""
    total = 0
    for name, typed in item.items():
        for kind, value in typed.items():
            total += len(name) + (len(b64decode(value)) if kind == "B" else len(value.encode()))
    return total


def write_units_of_a_turn() -> Figure:
    """Run a real turn of ten seconds at the default settings."""
    with Mongod() as mongod, Aws() as aws, OfflineModel(tokens_per_second=TOKENS_PER_SECOND) as model:
        table = aws.deploy(Template())["TurnsTable"]["Ref"]
        counted = asyncio.run(_turn(mongod.uri, aws.endpoint, table, model.base_url))
    said = write_units(TURN_SECONDS, Settings().tick_seconds)
    name = f"DynamoDB write units of a turn of {TURN_SECONDS} s"
    return Figure(name, "", counted, {"by arithmetic": said}, counted / said, 1.1)


async def _turn(uri: str, endpoint: str, table: str, base_url: str) -> int:
    adapter = MongoBackendAdapter(uri)
    provider = get_llm_provider("gpt-6-luna", base_url=base_url)
    keys = Credentials("local", "local")
    api = CountingApi(DYNAMODB, endpoint=endpoint, credentials=keys)
    registry = DynamoRegistry(table, api=api)
    session = MongoSessionManager(await adapter.initialize(), "bench")
    runner = Runner(Agent("bench", "Be brief."), session, provider=provider, registry=registry)
    async for _ in runner.run_stream(f"[long:{TURN_SECONDS * TOKENS_PER_SECOND}]"):
        pass
    await registry.aclose()
    await provider.aclose()
    await adapter.shutdown()
    return api.units


if __name__ == "__main__":
    print(write_units_of_a_turn())
