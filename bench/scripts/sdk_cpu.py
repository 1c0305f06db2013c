"""CPU per delta of the SDK's typed iteration. Arguments: base url, deltas, rounds. Prints microseconds for each API."""

import asyncio
import json
import sys
import time
from typing import Literal

from openai import AsyncOpenAI

Api = Literal["responses", "chat"]


async def read(client: AsyncOpenAI, api: Api, prompt: str) -> None:
    if api == "responses":
        async for event in await client.responses.create(model="gpt-4.1-mini", input=prompt, stream=True):
            if event.type == "response.output_text.delta":
                str(event.delta)
        return
    async for chunk in await client.chat.completions.create(
        model="gpt-4.1-mini", messages=[{"role": "user", "content": prompt}], stream=True
    ):
        for choice in chunk.choices:
            str(choice.delta.content)


async def cost(client: AsyncOpenAI, api: Api, prompt: str, rounds: int) -> float:
    await read(client, api, prompt)
    before = time.process_time()
    for _ in range(rounds):
        await read(client, api, prompt)
    return (time.process_time() - before) / rounds


async def main(base_url: str, deltas: int, rounds: int) -> None:
    client = AsyncOpenAI(base_url=base_url, api_key="none")
    found = {}
    for api in ("responses", "chat"):
        long = await cost(client, api, f"[burst:{deltas}]", rounds)
        short = await cost(client, api, "[burst:1]", rounds)
        found[api] = (long - short) / deltas * 1e6
    print(json.dumps(found))


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
