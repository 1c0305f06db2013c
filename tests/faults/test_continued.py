"""SIGKILL where somebody looks after turns: the answer is finished unasked, and its readers see it go on."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.faults.client import Client, Stream
from tests.faults.continue_processes import ColdKills, at_takeover
from tests.faults.house import FUNCTIONS_THAT_FINISH, LEASE_SECONDS, TALKING, House, Servers, open_house
from tests.fixtures.zygote import forks

IN_TIME_SECONDS = LEASE_SECONDS + 60
"""Nobody waits so long. A busy machine may need a part of it to start processes."""


@pytest.fixture(scope="module")
def kills() -> ColdKills:
    return ColdKills(forks())


@pytest.fixture(scope="module")
async def watched(servers: Servers, kills: ColdKills) -> AsyncIterator[House]:
    async with open_house(servers, functions=FUNCTIONS_THAT_FINISH, launcher=kills.launcher) as house:
        yield house


async def check_finished(house: House, client: Client, answer_id: str) -> None:
    """The turn is completed in time, without asking anybody for it, and its tool has run once."""
    async with asyncio.timeout(IN_TIME_SECONDS):
        answer = await house.finished(client)
    assert (answer["status"], answer["client_message_id"]) == ("complete", answer_id)
    assert house.servers.ledger.read_text().count(answer_id) == 1


async def read_on(client: Client) -> Stream:
    async with asyncio.timeout(IN_TIME_SECONDS):
        return (await client.read_on())[-1]


async def test_a_killed_turn_is_finished_unasked_and_a_reader_sees_it_go_on(watched: House) -> None:
    client = watched.client()
    dead, _ = await watched.killed(client, TALKING, lambda stream: "tool-output-available" in stream.kinds)
    stream, _ = await asyncio.gather(read_on(client), check_finished(watched, client, dead.answer_id))
    assert (stream.answer_id, stream.finished_as) == (dead.answer_id, "complete")


@pytest.mark.parametrize("stage", ["in its cold start", "before its takeover", "after its takeover"])
async def test_a_killed_turn_is_finished_although_who_looks_after_it_is_killed_as_well(
    watched: House, kills: ColdKills, stage: str
) -> None:
    client = watched.client()
    dead, _ = await watched.killed(client, TALKING, lambda stream: stream.kinds.count("text-delta") >= 3)
    if stage == "in its cold start":
        await kills.next_start(watched, client)
    else:
        await at_takeover("request" if stage == "before its takeover" else "answer")(watched, client)
    await check_finished(watched, client, dead.answer_id)
    assert not kills.doomed


async def test_a_turn_that_outlives_its_invocation_goes_on_in_the_run_function(servers: Servers) -> None:
    pause = '[tool:pause {"seconds": 1.5}]'
    prompt = f'[tool:charge {{"order": "o2"}}] [then] {pause} [then] {pause} [then] {pause} [then] [echo:Arrived.]'
    async with open_house(servers, functions=FUNCTIONS_THAT_FINISH, timeout=5) as house:
        client = house.client()
        first = await client.ask(prompt).end()
        assert (first.status, first.finished_as, first.done) == (200, None, False), "it goes on elsewhere"
        stream = await read_on(client)
        await check_finished(house, client, first.answer_id)
        assert (stream.answer_id, stream.finished_as) == (first.answer_id, "complete")
        assert stream.text.endswith("Arrived.")
