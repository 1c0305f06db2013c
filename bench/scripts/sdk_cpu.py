"""CPU per delta of the SDK's typed iteration, in microseconds.

Arguments: base url, deltas, and rounds to measure each API in bursts; without rounds, at 100 deltas a second.
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


async def main(base_url: str, deltas: int, rounds: int = 0) -> None:
    client = AsyncOpenAI(base_url=base_url, api_key="none")
    if not rounds:
        await read(client, "responses", "[burst:1]")
        print(await paced_cost(client, deltas) * 1e6)
        return
    found = {}
    for api in ("responses", "chat"):
        long = await cost(client, api, f"[burst:{deltas}]", rounds)
        short = await cost(client, api, "[burst:1]", rounds)
        found[api] = (long - short) / deltas * 1e6
    print(json.dumps(found))


asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
