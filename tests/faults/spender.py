"""One of several processes that spend one user's budget at the same moment: `python -m tests.faults.spender JOB`.

It says that it is ready, starts its turns when it is told to, and prints what became of them.
"""

import asyncio
import json
import sys
from typing import Any

from omniagent import Agent, Budget, InMemorySessionManager, Runner, Settings
from omniagent.aws.budget_table import DynamoLedger
from omniagent.aws.credentials import Credentials
from omniagent.aws.json_api import DYNAMODB, AwsJson
from omniagent.errors import BudgetExceeded
from omniagent.providers import get_llm_provider
from omniagent.testing import InMemoryStore, MemoryRegistry


async def spend(job: dict[str, Any]) -> dict[str, int]:
    """Start all turns at once and count those that were admitted, those that were refused, and their tokens."""
    settings = Settings(max_running_turns_per_user=job["turns"])
    keys = Credentials("local", "local")
    api = AwsJson(DYNAMODB, endpoint=job["endpoint"], credentials=keys, timeout_seconds=60, attempts=3)
    ledger = DynamoLedger(job["table"], api=api)
    provider = get_llm_provider("gpt-6-luna", base_url=job["model"], max_retries=0)
    store, registry = InMemoryStore(), MemoryRegistry()

    async def turn(number: int) -> int | None:
        session = InMemorySessionManager(job["user"], f"{job['name']}-{number}", store=store, settings=settings)
        runner = Runner(
            Agent("spender", "Be brief."),
            session,
            provider=provider,
            registry=registry,
            budget=Budget(tokens_per_day=job["budget"]),
            ledger=ledger,
        )
        try:
            return (await runner.run(f"[slow:1][long:20] {job['name']} {number}")).usage.total_tokens
        except BudgetExceeded:
            return None

    spent = await asyncio.gather(*(turn(number) for number in range(job["turns"])))
    await ledger.aclose()
    await provider.aclose()
    admitted = [tokens for tokens in spent if tokens is not None]
    return {"admitted": len(admitted), "refused": len(spent) - len(admitted), "tokens": sum(admitted)}


def main() -> None:
    job = json.loads(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asyncio.run(spend(job))), flush=True)


if __name__ == "__main__":
    main()
