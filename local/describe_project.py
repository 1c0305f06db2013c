"""Prints a project as JSON: `python describe_project.py SETTING...`, on the functions' own packages and path.

Runs apart from `make run`: the project is code that may fail, and it sees what the functions see.
"""

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omniagent import Agent


def describe(names: list[str]) -> dict[str, Any]:
    """Import the project and return the named settings, and what its agent is made of."""
    from project import project  # found on the path of the functions

    settings = project.read_settings()
    model = project.agent.model or settings.model
    told = {name: getattr(settings, name) for name in names}
    return {"settings": {**told, "model": model}, "agent": {"model": model, **_agent(project.agent)}}


def _agent(agent: "Agent") -> dict[str, Any]:
    from omniagent import RunContext

    if isinstance(agent.instructions, str):
        instructions, made_by = agent.instructions, None
    else:
        made_by = getattr(agent.instructions, "__qualname__", type(agent.instructions).__name__)
        try:
            instructions = asyncio.run(agent.instructions_for(RunContext(user="playground")))
        except Exception as error:  # a team's function may need what only a turn has
            instructions = f"{made_by} cannot be called outside a turn: {type(error).__name__}: {error}"
    tools = [
        {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
        for spec in agent.tool_specs()
    ]
    return {"name": agent.name, "instructions": instructions, "made_by": made_by, "tools": tools}


if __name__ == "__main__":
    description = describe(sys.argv[1:])
    # The last line: whatever the project prints comes before it.
    print(json.dumps(description))
