"""An agent for tests, put in the place of the sample agent: code that blocks its process when asked to."""

import time

from omniagent import Agent, RunContext


def instructions(context: RunContext) -> str:
    """Hold up the whole process when asked to, as code does that blocks."""
    if context.query == "Hang":
        time.sleep(600)
    return "Be patient."


agent = Agent(name="patient", instructions=instructions)
