"""An agent for tests, put in the place of the sample agent: it waits for what never comes."""

import asyncio
import time

from omniagent import Agent, RunContext, tool


@tool
async def wait() -> str:
    """Wait until somebody puts an end to it."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("the tool was cancelled", flush=True)
        raise
    return "unreachable"


def instructions(context: RunContext) -> str:
    """Hold up the whole process when asked to, as code does that blocks."""
    if context.query == "Hang":
        time.sleep(600)
    return "Be patient."


agent = Agent(name="patient", instructions=instructions, tools=[wait])
