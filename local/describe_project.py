"""Prints a project as JSON: `python describe_project.py SETTING...`, with the functions' packages and path.

Runs in a separate process, because importing a project may fail, and needs what the functions have.
"""

import asyncio
import json
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omniagent import Agent

MAX_SUGGESTIONS = 4


def describe(names: list[str]) -> dict[str, Any]:
    """Import the project and return the named settings and a description of each agent, the default first."""
    from omniagent.ai.providers import chain_of
    from project import project  # found on the path of the functions

    settings = project.read_settings()
    agents = [
        {
            "id": name,
            "model": ", ".join(chain_of(agent.model or settings.model)),
            "own_model": agent.model,
            **_agent(agent),
        }
        for name, agent in project.all_agents.items()
    ]
    return {
        "settings": {**{name: getattr(settings, name) for name in names}, "model": agents[0]["model"]},
        "agents": agents,
        "has_rule": project.choose_agent is not None,
    }


def _agent(agent: "Agent") -> dict[str, Any]:
    from omniagent import RunContext

    if isinstance(agent.instructions, str):
        instructions, made_by = agent.instructions, None
    else:
        given = agent.instructions if isinstance(agent.instructions, list | tuple) else [agent.instructions]
        functions = [each for each in given if not isinstance(each, str)]
        made_by = ", ".join(getattr(each, "__qualname__", type(each).__name__) for each in functions) or None
        try:
            prompt = asyncio.run(agent.prompt_for(RunContext(user="playground")))
            instructions = "\n\n".join(filter(None, prompt))
        except Exception as error:  # a team's function may need values that only a turn has
            instructions = f"{made_by} cannot be called outside a turn: {type(error).__name__}: {error}"
    tools = [
        {"name": spec.name, "description": spec.description, "parameters": spec.parameters} for spec in agent.tool_specs
    ]
    return {
        "name": agent.name,
        "title": agent.title or agent.name.replace("_", " ").replace("-", " ").capitalize(),
        "description": agent.description,
        "suggestions": list(agent.suggestions)
        or [_request(spec.description) for spec in agent.tool_specs[:MAX_SUGGESTIONS]],
        "instructions": instructions,
        "made_by": made_by,
        "tools": tools,
    }


def _request(docstring: str) -> str:
    """Return the first clause of a tool's docstring, which says in the imperative what it does."""
    return re.split(r"[.:;(\n]", docstring, maxsplit=1)[0].strip()


if __name__ == "__main__":
    description = describe(sys.argv[1:])
    # The last line of the output: the project may have printed before.
    print(json.dumps(description))
