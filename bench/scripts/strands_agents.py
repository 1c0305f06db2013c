"""A streamed answer with strands-agents. Arguments: base url, prompt, turns."""

import asyncio
import sys

from strands import Agent, tool
from strands.models.openai import OpenAIModel


@tool
def noop() -> str:
    """Do nothing. Without any tool the framework sends an empty list, which the API refuses."""
    return "nothing"


async def main(base_url: str, prompt: str, turns: int) -> None:
    model = OpenAIModel(client_args={"base_url": base_url, "api_key": "none"}, model_id="gpt-6-luna")
    for _ in range(turns):
        agent = Agent(model=model, system_prompt="Be brief.", tools=[noop], callback_handler=None)
        async for event in agent.stream_async(prompt):
            if "data" in event:
                print(event["data"], end="", flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
