"""Counts the DynamoDB units of one turn while it runs: `make units` writes them for docs/costs.md."""

import asyncio
import json
import math
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

from bench.figure import Figure
from local.aws import Aws
from local.model import OfflineModel
from local.mongod import Mongod
from local.template import Template
from omniagent import Agent, MongoBackendAdapter, MongoSessionManager, Runner
from omniagent.aws.client import DYNAMODB, AwsJson, CredentialCache
from omniagent.aws.turn_table import DynamoRegistry
from omniagent.providers import get_llm_provider
from scripts.readme import TURN_SECONDS, UNITS

TOKENS_PER_SECOND = 50
MOST_UNITS = 24
WRITES = {"PutItem", "UpdateItem", "DeleteItem"}


class CountingApi(AwsJson):
    """Counts units. A write has one per started kilobyte; a read one per started 4 KB, half of it if not consistent."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.writes, self.reads = 0, 0.0

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        answer = await super().call(operation, **arguments)
        if operation in WRITES:
            self.writes += max(1, math.ceil(_size(arguments.get("Item", {})) / 1024))
        else:
            read = sum(map(_size, answer.get("Items", [answer.get("Item", {})])))
            self.reads += max(1, math.ceil(read / 4096)) * (1 if arguments.get("ConsistentRead") else 0.5)
        return answer


def _size(item: dict[str, dict[str, str]]) -> int:
    """Return the size of an item: its names and values, with binary values decoded."""
    total = 0
    for name, typed in item.items():
        for kind, value in typed.items():
            total += len(name) + (len(b64decode(value)) if kind == "B" else len(value.encode()))
    return total


def units_of_a_turn() -> dict[str, float]:
    """Run a real turn of ten seconds at the default settings."""
    with Mongod() as mongod, Aws() as aws, OfflineModel(tokens_per_second=TOKENS_PER_SECOND) as model:
        table = aws.deploy(Template())["TurnsTable"]["Ref"]
        api = asyncio.run(_turn(mongod.uri, aws.endpoint, table, model.base_url))
    return {"write": api.writes, "read": api.reads}


def figures() -> Iterator[Figure]:
    for kind, units in units_of_a_turn().items():
        name = f"DynamoDB {kind} units of a turn of {TURN_SECONDS} s"
        yield Figure(name, "", units, {"bound": MOST_UNITS}, units / MOST_UNITS, 1)


async def _turn(uri: str, endpoint: str, table: str, base_url: str) -> CountingApi:
    adapter = MongoBackendAdapter(uri)
    provider = get_llm_provider("gpt-6-luna", base_url=base_url)
    keys = CredentialCache({"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"})
    api = CountingApi(DYNAMODB, endpoint=endpoint, credentials=keys)
    registry = DynamoRegistry(table, api=api)
    session = MongoSessionManager(await adapter.initialize(), "bench")
    runner = Runner(Agent("bench", "Be brief."), session, provider=provider, registry=registry)
    async for _ in runner.run_stream(f"[long:{TURN_SECONDS * TOKENS_PER_SECOND}]"):
        pass
    await registry.aclose()
    await provider.aclose()
    await adapter.shutdown()
    return api


if __name__ == "__main__":
    units = units_of_a_turn()
    print(units)
    UNITS.write_text(json.dumps(units, indent=2) + "\n")
