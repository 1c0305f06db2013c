"""Prints the project's models that end soon, as JSON, for `make preflight`.

Runs in a separate process, with the functions' path and the stage's values in the environment: importing a project may
fail, and its own providers are part of the check.
"""

import asyncio
import json
from dataclasses import asdict

from omniagent.ai.model_ends import ModelEnd, announced_ends, models_of
from omniagent.ai.providers import ProviderPool


async def ends() -> list[ModelEnd]:
    from project import project  # found on the path of the functions

    settings = project.read_settings()
    return await announced_ends(
        ProviderPool.from_settings(settings, project.providers), models_of(project.all_agents.values(), settings)
    )


if __name__ == "__main__":
    # The last line of the output: the project may have printed before.
    print(json.dumps([asdict(end) for end in asyncio.run(ends())], default=str))
