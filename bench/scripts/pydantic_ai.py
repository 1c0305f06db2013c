"""A streamed answer with pydantic-ai. Arguments: base url, prompt, turns."""

import asyncio
import sys

sys.path.pop(0)  # this file's folder, where its own name would hide the package

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


async def main(base_url: str, prompt: str, turns: int) -> None:
    model = OpenAIResponsesModel("gpt-6-luna", provider=OpenAIProvider(base_url=base_url, api_key="none"))
    agent = Agent(model, instructions="Be brief.")
    for _ in range(turns):
        async with agent.run_stream(prompt) as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                print(text, end="", flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
