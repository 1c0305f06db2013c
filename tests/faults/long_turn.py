"""The third part of `make continue`: a turn of 200 seconds, with functions that may run for 20."""

import asyncio
import logging
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from omniagent.settings import Settings
from tests.faults.client import Client, Stream
from tests.faults.house import House, open_house, open_servers
from tests.turns.counts import write_down

FUNCTION_SECONDS = 20
LEAST_SECONDS = 200
LEAST_INVOCATIONS = 9
MOST_SILENT_SECONDS = 3.0
STEPS = 100
TOKEN_MILLISECONDS = 90
"""A step takes two seconds: less than the part of an invocation in which none is begun."""
FUNCTIONS = ("chat", "sessions", "run")
SETTINGS = {
    "TICK_SECONDS": str(Settings().tick_seconds),
    "LEASE_SECONDS": str(Settings().lease_seconds),
    "MAX_STEPS": str(STEPS + 1),
    "MAX_TOOL_CALLS_PER_TURN": str(STEPS),
}
"""As deployed, with more steps."""


def prompt(milliseconds: int) -> str:
    """Ask for many steps, with a tool in each, and so many milliseconds for a token."""
    text = "is taken word by word, by a model that has all the time in the world."
    pace = f"[slow:{milliseconds}]"
    steps = [f"{pace}[echo:Step {number} {text}][tool:blink {{}}]" for number in range(1, STEPS + 1)]
    return " [then] ".join([*steps, "[echo:Arrived.]"])


def longest_silence(streams: Sequence[Stream]) -> float:
    """The longest time without an event that the reader had not seen. What a resume repeats is not new."""
    known, moments = 0, list[float]()
    for stream in streams:
        count, rest = 0, b""
        for at, piece in stream.pieces:
            whole, _, rest = (rest + piece).rpartition(b"\n\n")
            count += whole.count(b"data: {")
            if count > known:
                known = count
                moments.append(at)
    return max(later - earlier for earlier, later in pairwise(moments))


async def read(client: Client, question: str) -> tuple[list[Stream], float]:
    """Ask, and read the answer to its end, resuming. Returns the streams, and how many seconds that took."""
    began = time.monotonic()
    streams = await client.read_on(client.ask(question))
    assert {stream.status for stream in streams} == {200}
    return streams, time.monotonic() - began


def parts_of(house: House, client: Client) -> list[dict[str, Any]]:
    """Return the stored answer, without the ids of its calls."""
    (answer,) = house.read(client).answers
    return [{name: value for name, value in part.items() if name != "call_id"} for part in answer["parts"]]


async def main() -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        async with open_servers(Path(folder)) as servers:
            async with open_house(servers, SETTINGS) as house:
                client = house.client()
                await read(client, prompt(1))
                undisturbed = parts_of(house, client)
            limits: dict[str, Any] = {"timeout": FUNCTION_SECONDS, "run_timeout": FUNCTION_SECONDS}
            async with open_house(servers, SETTINGS, functions=FUNCTIONS, **limits) as house:
                await house.client().say("[echo:Hello.]")
                client = house.client()
                streams, seconds = await read(client, prompt(TOKEN_MILLISECONDS))
                answer_id = streams[0].answer_id
                invocations = house.log.count("turn handed over", answer_id) + 1
                is_equal = parts_of(house, client) == undisturbed
    silence = longest_silence(streams)
    result = (
        f"{seconds:.0f} s with functions of {FUNCTION_SECONDS} s: {invocations} invocations, "
        f"{len(streams) - 1} reconnects of its reader, longest silence {silence:.1f} s, "
        f"ended {streams[-1].finished_as}, parts {'equal to' if is_equal else 'DIFFER from'} those of an "
        "undisturbed turn"
    )
    print(result, flush=True)
    assert seconds >= LEAST_SECONDS
    assert invocations >= LEAST_INVOCATIONS
    assert {stream.answer_id for stream in streams} == {answer_id}
    assert streams[-1].finished_as == "complete"
    assert is_equal
    assert silence <= MOST_SILENT_SECONDS
    write_down("long turn", result)


if __name__ == "__main__":
    asyncio.run(main())
