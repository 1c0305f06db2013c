"""What a user spends through several processes, compared with the model's own counts: `make budget`.

Each process runs one turn after the other. Some are killed, and others started in their place.
"""

import asyncio
import json
import random
import sys
import uuid
from asyncio.subprocess import Process
from dataclasses import dataclass

from local.aws import Aws
from local.model import OfflineModel
from local.template import ROOT, Template
from omniagent.aws.turn_table import DynamoCounter
from omniagent.session.ids import user_id_of
from scripts.readme import BUDGET
from tests.fixtures.conversation import dynamodb_api


@dataclass(frozen=True)
class Spent:
    """The result of one run."""

    processes: int
    kills: int
    budget: int
    spent: int
    """By the counter."""
    counted: int
    """By the model."""
    calls: int
    largest: int
    """The tokens of the largest call."""

    def __str__(self) -> str:
        return (
            f"{self.processes} processes, {self.kills} kills, {self.calls:,} model calls of up to {self.largest} "
            f"tokens: the model counted {self.counted:,} tokens, the counter {self.spent:,}; "
            f"the budget of {self.budget:,} was exceeded by {self.spent - self.budget:,}"
        )

    def check(self) -> None:
        assert self.spent <= self.counted, "counted twice"
        assert self.counted - self.spent <= self.kills * self.largest, "more than the call that each kill cut off"
        assert self.budget <= self.spent <= self.budget + self.processes * self.largest, "more than one call each"
        assert self.kills


async def run(aws: Aws, model: OfflineModel, *, processes: int, kills: int, budget: int) -> Spent:
    """Spend one budget from several processes while some of them are killed."""
    table, user = aws.deploy(Template())["TurnsTable"]["Ref"], f"user-{uuid.uuid4().hex}"
    job = {"table": table, "endpoint": aws.endpoint, "model": model.base_url, "user": user, "budget": budget}
    before, chance, killed = len(model.counted), random.Random(20261116), 0
    running = [await _start(job) for _ in range(processes)]
    try:
        while killed < kills and any(process.returncode is None for process in running):
            calls = len(model.counted) + processes  # between two kills
            while len(model.counted) < calls and any(each.returncode is None for each in running):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0, 0.2))
            victim = chance.randrange(processes)
            if running[victim].returncode is None:
                running[victim].kill()
                await running[victim].wait()
                killed += 1
                running[victim] = await _start(job)
        assert [await process.wait() for process in running] == [0] * processes
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
                await process.wait()
    counter = DynamoCounter(table, api=dynamodb_api(aws.endpoint))
    spending = await counter.read(user_id_of(user))
    await counter.aclose()
    assert spending.estimated == 0
    tokens = model.counted[before:]
    return Spent(
        processes=processes,
        kills=killed,
        budget=budget,
        spent=spending.tokens,
        counted=sum(tokens),
        calls=len(tokens),
        largest=max(tokens),
    )


async def _start(job: dict[str, object]) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.faults.spender", json.dumps(job), cwd=ROOT)


async def main() -> None:
    """Run it at full size."""
    with Aws() as aws, OfflineModel() as model:
        spent = await run(aws, model, processes=8, kills=60, budget=100_000)
    print(f"budget: {spent}", flush=True)
    spent.check()
    BUDGET.write_text(json.dumps({"budget": str(spent)}, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
