"""The agent of the fault suite: one tool that takes as long as it is told to."""

import asyncio

from omniagent import Agent, tool


@tool(timeout_seconds=20)
async def pause(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return f"waited {seconds:g} seconds"


@tool(timeout_seconds=1)
async def blink() -> str:
    """Wait for a moment."""
    return "done"


agent = Agent("faulty", "Be brief.", tools=[pause, blink])
