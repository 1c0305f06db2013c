"""Processes restored from one snapshot, and many started at once (P11).

What copies would repeat without the hooks is in `tests/lambda_runtime/test_snapshots`, and what becomes of connections
from before the snapshot in `tests/emulator/test_snapstart`.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from local.aws import Aws
from local.model import OfflineModel
from tests.fixtures.calls import Json, User
from tests.fixtures.functions import functions_with
from tests.fixtures.product import Product, running_product

COPIES = 4
PRIMED = Path(__file__).parent / "projects" / "primed.py"
DRAW = "[tool:draw {}][then][echo:drawn]"

linux = pytest.mark.skipif(sys.platform != "linux", reason="copies of a process are made by Linux")


async def ask_all(product: Product, users: list[User], text: str) -> list[list[Json]]:
    """Let every user ask at once, each in a process of their own: none answers before all of them run."""
    with product.wire.held() as gate:
        answers = [asyncio.create_task(user.ask(text)) for user in users]
        waiting = asyncio.create_task(gate.until_waiting(len(users)))
        await asyncio.wait([waiting, *answers], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
    return await asyncio.gather(*answers)


def drawn(events: list[Json]) -> Json:
    (output,) = (event["output"] for event in events if event["type"] == "tool-output-available")
    found: Json = json.loads(output) if isinstance(output, str) else output
    return found


def trace_ids(product: Product) -> dict[str, set[str]]:
    """The trace ids in the log, by request."""
    found: dict[str, set[str]] = {}
    for _, line in product.lines:
        fields = json.loads(line) if line.startswith("{") else {}
        if fields.get("trace_id"):
            found.setdefault(fields["request_id"], set()).add(fields["trace_id"])
    return found


@linux
async def test_restored_processes_repeat_no_id_no_key_and_no_random_number(
    mongod: str, cloud: Aws, model: OfflineModel, tmp_path: Path
) -> None:
    code = functions_with(tmp_path, project=PRIMED)
    options: dict[str, Any] = {
        "parameters": {"SnapStart": "on"},
        "functions": ("chat",),
        "change": lambda function: function.having(code=code),
        "port": 0,  # with a front, which takes the traces
        "emulator": {"sqs": None, "concurrency": 100},
        "environment": {"MONGODB_TIMEOUT_SECONDS": "90"},
    }
    async with running_product(mongod, cloud, model, **options) as product:
        users = [product.user() for _ in range(COPIES)]
        answers = await ask_all(product, users, DRAW)
        assert [events[-1]["data"]["status"] for events in answers] == ["complete"] * COPIES
        assert len(product.emulator.processes("chat")) == COPIES

        for kind in drawn(answers[0]):
            assert len({drawn(events)[kind] for events in answers}) == COPIES, kind
        assert len({events[0]["messageId"] for events in answers}) == COPIES
        traces = trace_ids(product)
        assert len(traces) == COPIES
        assert len(set.union(*traces.values())) == COPIES
        for user in users:
            assert len(product.stored(user)) == 2

        # Each process reads its keys once, however many calls it makes, and so did the one that was snapshotted.
        snapshot = product.emulator.snapshot("chat")
        await asyncio.gather(*(user.ask("[echo:again]") for user in users))
        assert snapshot.credentials.reads == len(product.emulator.processes("chat")) + 1
        assert not snapshot.graveyard.received
