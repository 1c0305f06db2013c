"""CPU per delta of the SDK's typed iteration, in microseconds: for each API, and at 100 deltas a second.

Arguments: base url, deltas, rounds, deltas at that pace.
"""

import asyncio
import json
import sys
import time
from typing import Literal

from openai import AsyncOpenAI

Api = Literal["responses", "chat"]


async def read(client: AsyncOpenAI, api: Api, prompt: str) -> int:
    """Read an answer and return the number of its deltas."""
    deltas = 0
    if api == "responses":
        async for event in await client.responses.create(model="gpt-6-luna", input=prompt, stream=True):
            if event.type == "response.output_text.delta":
                str(event.delta)
                deltas += 1
        return deltas
    async for chunk in await client.chat.completions.create(
        model="gpt-6-luna", messages=[{"role": "user", "content": prompt}], stream=True
    ):
        for choice in chunk.choices:
            str(choice.delta.content)
            deltas += 1
    return deltas


async def cost(client: AsyncOpenAI, api: Api, prompt: str, rounds: int) -> float:
    await read(client, api, prompt)
    before = time.process_time()
    for _ in range(rounds):
        await read(client, api, prompt)
    return (time.process_time() - before) / rounds


async def paced_cost(client: AsyncOpenAI, deltas: int) -> float:
    """Seconds per delta when each one wakes the process up."""
    before = time.process_time()
    sent = await read(client, "responses", f"[slow:10] [long:{deltas}]")
    return (time.process_time() - before) / sent


async def main(base_url: str, deltas: int, rounds: int, paced: int) -> None:
    client = AsyncOpenAI(base_url=base_url, api_key="none")
    found = {}
    for api in ("responses", "chat"):
        long = await cost(client, api, f"[burst:{deltas}]", rounds)
        short = await cost(client, api, "[burst:1]", rounds)
        found[api] = (long - short) / deltas * 1e6
    found["paced"] = await paced_cost(client, paced) * 1e6
    print(json.dumps(found))


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
