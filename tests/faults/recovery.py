"""How long a killed turn takes to be finished, with the lease and the sweep as deployed: a part of `make continue`."""

import asyncio
import logging
import tempfile
import time
from pathlib import Path

from omniagent.settings import Settings
from tests.faults.client import Client, a_moment
from tests.faults.house import House, open_house, open_servers
from tests.faults.truth import Tally
from tests.turns.counts import write_down

LEASE_SECONDS = Settings().lease_seconds
SETTINGS = {"TICK_SECONDS": str(Settings().tick_seconds), "LEASE_SECONDS": str(LEASE_SECONDS)}
SWEEP_SECONDS = 60.0
TURNS = 3
"""Of each kind."""
PROMPT = '[slow:20][echo:Let me see what I can do for you.][tool:charge {"order": "17"}]'
MOST_SECONDS = {"with an open page": LEASE_SECONDS + 3, "with a retry": LEASE_SECONDS + 3, "without a client": 75.0}


async def killed(house: House) -> tuple[Client, str, float]:
    """Ask, and kill the process while it answers. Returns the message and when that was."""
    client = house.client()
    exchange = client.ask(PROMPT)
    await exchange.seen("text-delta", 3)
    at = house.kill(client)
    await exchange.end()
    return client, str(exchange.stream.message_id), at


async def by_page(house: House) -> float:
    """A page reads the answer, and resumes whenever its stream ends."""
    client, _, at = await killed(house)
    while (stream := await client.resume().end()).finished_as is None:
        pass
    return _checked(stream.finished_as, at)


async def by_retry(house: House) -> float:
    """The client sends its message again."""
    client, message_id, at = await killed(house)
    return _checked((await client.say(PROMPT, message_id)).finished_as, at)


async def by_nobody(house: House) -> float:
    """Only the sweep comes."""
    client, _, at = await killed(house)
    while not (answers := house.read(client).answers):
        await a_moment()
    return _checked(answers[0]["status"], at)


def _checked(status: str | None, at: float) -> float:
    assert status == "complete", status
    return time.monotonic() - at


async def main() -> None:
    logging.disable(logging.CRITICAL)
    longest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_servers(Path(folder)) as servers,
            open_house(
                servers, Tally(), SETTINGS, functions=("chat", "sessions", "run"), sweep_seconds=SWEEP_SECONDS
            ) as house,
        ):
            await house.warm_up()
            kinds = {"with an open page": by_page, "with a retry": by_retry, "without a client": by_nobody}
            for name, finished in kinds.items():
                times = await asyncio.gather(*(finished(house) for _ in range(TURNS)))
                longest[name] = max(times)
    listed = ", ".join(f"{seconds:.1f} s {name} (limit {MOST_SECONDS[name]:g} s)" for name, seconds in longest.items())
    result = f"the slowest of {TURNS} killed turns was stored after {listed}"
    print(f"lease {LEASE_SECONDS:g} s, sweep every {SWEEP_SECONDS:g} s: {result}")
    assert all(seconds <= MOST_SECONDS[name] for name, seconds in longest.items()), longest
    write_down("recovery", result)


if __name__ == "__main__":
    asyncio.run(main())
