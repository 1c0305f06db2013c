"""One process for many requests, as on Lambda Managed Instances: all at once, on connections that they share."""

import asyncio
from contextlib import AsyncExitStack

from pymongo import MongoClient

from local.aws import Aws
from local.model import OfflineModel
from local.mongod import Mongod
from local.template import Function
from tests.fixtures.calls import Json
from tests.fixtures.product import running_product

STREAMS = 64
STALLED = 12
CONNECTIONS = 10


def as_managed(function: Function) -> Function:
    return function.having(requests_at_once=STREAMS, concurrency=1) if function.short_name == "chat" else function


async def test_one_process_streams_many_answers_on_ten_connections(cloud: Aws, model: OfflineModel) -> None:
    # A MongoDB server of its own, so that every connection that it counts is ours.
    with Mongod() as mongod, MongoClient[Json](mongod.uri) as server:
        options = {"functions": ("chat", "sessions"), "change": as_managed}
        async with running_product(mongod.uri, cloud, model, **options) as product:
            await product.user().ask("Hello")
            [process] = product.emulator.processes("chat")
            users = [product.user() for _ in range(STREAMS)]
            endings = await asyncio.gather(*(user.ask("[echo:The answer to one of many]") for user in users))
            assert [ending[-1]["data"]["status"] for ending in endings] == ["complete"] * STREAMS
            operations = server.admin.aggregate([{"$currentOp": {"allUsers": True, "idleConnections": True}}])
            assert sum(each.get("appName") == "omniagent" for each in operations) <= CONNECTIONS

            async with AsyncExitStack() as stack:
                stalled = users[:STALLED]
                answers = [await stack.enter_async_context(user.asking("[stall] Wait with me")) for user in stalled]
                await asyncio.gather(*(answer.until("text-delta") for answer in answers))
                # All run now. A stop reaches its own turn only.
                await stalled[0].cancel()
                assert (await answers[0].rest())[-1]["data"]["status"] == "cancelled"
                assert all(product.is_answering(user) for user in stalled[1:])
                for user in stalled[1:]:
                    assert (await user.cancel()).status_code == 202
                endings = await asyncio.gather(*(answer.rest() for answer in answers[1:]))
            assert [ending[-1]["data"]["status"] for ending in endings] == ["cancelled"] * (STALLED - 1)
            assert [each.pid for each in product.emulator.processes("chat")] == [process.pid]
            assert all(len(product.stored(user)) == 4 for user in stalled)
