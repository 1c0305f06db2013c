"""Connections: made once per process, kept from one invocation to the next, and made anew when they were lost."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from pymongo import MongoClient

from local.aws import Aws
from local.model import OfflineModel
from local.mongod import Mongod
from tests.fixtures.calls import Json
from tests.fixtures.problems import check_problem
from tests.fixtures.product import Product, running_product
from tests.fixtures.proxy import Proxy, proxy_to

INVOCATIONS = 5


@dataclass(frozen=True)
class Frozen:
    """A product whose processes are stopped between invocations, with a proxy before each server that they call."""

    product: Product
    mongodb: Proxy
    aws: Proxy
    server: "MongoClient[Json]"

    @property
    def connections(self) -> int:
        """How many connections MongoDB has ever accepted."""
        created: int = self.server.admin.command("serverStatus")["connections"]["totalCreated"]
        return created

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.product.emulator.processes()]

    async def chat(self) -> str:
        """Run a turn of a new session, and return how it ended."""
        events = await self.product.user().ask("Hello")
        await self.product.emulator.settled()
        assert events[-1]["type"] == "data-session", events[-1]
        status: str = events[-1]["data"]["status"]
        return status

    async def list_sessions(self) -> int:
        response = await self.product.user().call("GET", "/sessions")
        await self.product.emulator.settled()
        return response.status_code


@pytest.fixture(scope="module")
async def frozen(cloud: Aws, model: OfflineModel) -> AsyncIterator[Frozen]:
    # A MongoDB server of its own, so that every connection that it counts is ours.
    with Mongod() as mongod, MongoClient[Json](mongod.uri) as server:
        direct = f"mongodb://127.0.0.1:{mongod.port}/?directConnection=true"
        async with proxy_to(direct) as mongodb, proxy_to(cloud.endpoint) as aws:
            environment = {
                "MONGODB_SECRET_ARN": "",
                "MONGODB_URI": mongodb.url,
                "MONGODB_TIMEOUT_SECONDS": "5",
                "AWS_ENDPOINT_URL": aws.url,
            }
            async with running_product(
                mongod.uri,
                cloud,
                model,
                functions=("chat", "sessions"),
                environment=environment,
                emulator={"freeze": True},
            ) as product:
                yield Frozen(product, mongodb, aws, server)


async def test_warm_processes_open_no_connection(frozen: Frozen) -> None:
    for _ in range(3):
        await frozen.chat()
        await frozen.list_sessions()
    before, pids = frozen.connections, frozen.pids
    calls = len(frozen.product.model.requests)
    for _ in range(INVOCATIONS):
        assert await frozen.chat() == "complete"
        assert await frozen.list_sessions() == 200
    assert (len(pids), frozen.pids) == (2, pids)
    assert frozen.connections == before
    assert len(frozen.product.model.requests) == calls + INVOCATIONS
    assert frozen.product.wire.accepted == 1


async def test_connections_lost_during_a_freeze_are_made_anew(frozen: Frozen) -> None:
    await frozen.chat()
    await frozen.list_sessions()
    pids = frozen.pids
    # The processes are stopped: they learn of it only when they run again.
    assert frozen.mongodb.cut() > 0
    assert frozen.product.wire.cut() == 1
    frozen.aws.cut()
    assert await frozen.chat() == "complete"
    assert await frozen.list_sessions() == 200
    assert frozen.pids == pids


async def test_a_database_that_was_away_is_a_503_and_then_works_again(frozen: Frozen) -> None:
    await frozen.chat()
    user = frozen.product.user()
    body = {"session_id": user.session, "query": "Hello"}
    with frozen.mongodb.down():
        refused, also = await asyncio.gather(user.call("POST", "/chat", json=body), user.call("GET", "/sessions"))
    check_problem(refused, 503, "storage_unavailable")
    check_problem(also, 503, "storage_unavailable")
    assert "retry-after" in refused.headers
    assert (await user.ask("Hello"))[-1]["data"]["turnNumber"] == 1
    assert await frozen.list_sessions() == 200
