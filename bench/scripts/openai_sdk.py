"""A streamed answer with the plain SDK. Arguments: base url, prompt, turns."""

import asyncio
import sys

from openai import AsyncOpenAI


async def main(base_url: str, prompt: str, turns: int) -> None:
    client = AsyncOpenAI(base_url=base_url, api_key="none")
    for _ in range(turns):
        stream = await client.responses.create(model="gpt-6-luna", input=prompt, stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
