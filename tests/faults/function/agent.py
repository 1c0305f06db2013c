"""The agent of the fault suite: tools that take as long as a test wants."""

import asyncio
import time

from omniagent import Agent, tool


@tool(timeout_seconds=20)
async def pause(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return f"waited {seconds:g} seconds"


@tool(timeout_seconds=20)
async def block(seconds: float) -> str:
    """Let a tick pass, then hold the event loop, as a tool with a blocking client does."""
    await asyncio.sleep(0.3)
    time.sleep(seconds)  # noqa: ASYNC251 - the fault that is wanted
    return f"blocked {seconds:g} seconds"


@tool(timeout_seconds=1)
async def blink() -> str:
    """Wait for a moment."""
    return "done"


agent = Agent("faulty", "Be brief.", tools=[pause, block, blink])
