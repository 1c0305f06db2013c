"""One of several processes that spend one user's budget: `python -m tests.faults.spender JOB`. Ends when refused."""

import asyncio
import json
import sys
from itertools import count
from typing import Any

from omniagent import Agent, Budget, InMemorySessionManager, Runner, tool
from omniagent.aws.client import DYNAMODB, AwsJson, CredentialCache
from omniagent.aws.turn_table import DynamoCounter
from omniagent.errors import BudgetExceeded
from omniagent.providers import get_llm_provider


@tool
def blink() -> str:
    """Blink."""
    return "blinked"


async def spend(job: dict[str, Any]) -> None:
    """Run one turn of two model calls after the other, as a function does, until the budget refuses one."""
    keys = CredentialCache({"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"})
    api = AwsJson(DYNAMODB, endpoint=job["endpoint"], credentials=keys, timeout_seconds=60)
    counter = DynamoCounter(job["table"], api=api)
    provider = get_llm_provider("gpt-6-luna", base_url=job["model"], max_retries=0)
    agent, budget = Agent("spender", "Be brief.", tools=[blink]), Budget(tokens_per_day=job["budget"])
    for number in count():
        session = InMemorySessionManager(job["user"], f"s{number}")
        runner = Runner(agent, session, provider=provider, budget=budget, counter=counter)
        try:
            await runner.run("[slow:5][tool:blink][then][slow:5][long:20]")
        except BudgetExceeded:
            break
    await counter.aclose()
    await provider.aclose()


if __name__ == "__main__":
    asyncio.run(spend(json.loads(sys.argv[1])))
