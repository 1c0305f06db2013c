"""The agent of the fault suite: tools that take as long as a test wants, in a process whose clock may be wrong."""

import asyncio
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from omniagent import Agent, RunContext, SessionManager, tool
from omniagent.providers import LLMProvider, get_llm_provider, register_provider


def skew_clock(most_seconds: float) -> None:
    """Set the clock of leases wrong by an amount that differs from process to process."""

    def now() -> datetime:
        skew = random.Random(os.getpid()).uniform(-most_seconds, most_seconds)
        return datetime.now(UTC) + timedelta(seconds=skew)

    SessionManager.now = staticmethod(now)  # type: ignore[method-assign]


if skew := float(os.environ.get("FAULT_CLOCK_SKEW_SECONDS", "0")):
    skew_clock(skew)


@tool(timeout_seconds=20)
async def pause(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return f"waited {seconds:g} seconds"


@tool(timeout_seconds=1)
async def blink() -> str:
    """Wait for a moment."""
    return "done"


@tool(timeout_seconds=20)
async def charge(order: str, context: RunContext) -> str:
    """Do what must not be done twice: every run is written down."""
    return await _write_down("charged", order, context)


@tool(timeout_seconds=20, approval=True)
async def transfer(order: str, context: RunContext) -> str:
    """Do what must not be done twice, nor without an approval."""
    return await _write_down("transferred", order, context)


async def _write_down(done: str, order: str, context: RunContext) -> str:
    with Path(os.environ["FAULT_LEDGER"]).open("a") as ledger:  # noqa: ASYNC230 - one line
        ledger.write(f"{order} {context.turn_id}\n")
    await asyncio.sleep(0.05)
    return f"{done} {order}"


@tool(timeout_seconds=20, retry_safe=True)
async def die() -> str:
    """End the process, each time."""
    os._exit(1)


def asked_once(model: str, **options: Any) -> LLMProvider:
    """A model that is never asked again by its client: the suite counts the calls of each step."""
    return get_llm_provider(model, max_retries=0, **options)


register_provider("once", asked_once)
agent = Agent("faulty", "Be brief.", tools=[pause, blink, charge, transfer, die], model="once/gpt-6-luna")
