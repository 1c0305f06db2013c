"""A streamed answer with openai-agents. Arguments: base url, prompt, turns."""

import asyncio
import sys

from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI


async def main(base_url: str, prompt: str, turns: int) -> None:
    set_tracing_disabled(True)
    model = OpenAIResponsesModel("gpt-6-luna", AsyncOpenAI(base_url=base_url, api_key="none"))
    agent = Agent("bench", instructions="Be brief.", model=model)
    for _ in range(turns):
        result = Runner.run_streamed(agent, prompt)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                print(event.data.delta, end="", flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
