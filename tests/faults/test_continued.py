"""SIGKILL where somebody looks after turns: the answer is finished unasked, and its readers see it go on."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from omniagent.session.ids import new_id
from tests.faults import second_kills
from tests.faults.client import Client, Exchange, Json, Stream, a_moment
from tests.faults.house import LEASE_SECONDS, House, Servers, open_house
from tests.faults.second_kills import ColdKills, SecondKill
from tests.faults.truth import Tally
from tests.fixtures.zygote import forks

TALKING = '[slow:20][echo:Let me see what I can do.][tool:charge {"order": "17"}]'
FUNCTIONS = ("chat", "sessions", "run")
IN_TIME_SECONDS = LEASE_SECONDS + 60
"""Nobody waits so long. A busy machine may need a part of it to start processes."""


@pytest.fixture(scope="module")
def kills() -> ColdKills:
    return ColdKills(forks())


@pytest.fixture(scope="module")
async def watched(servers: Servers, tally: Tally, kills: ColdKills) -> AsyncIterator[House]:
    async with open_house(servers, tally, functions=FUNCTIONS, launcher=kills.launcher) as house:
        yield house


async def finished(house: House, client: Client) -> Json:
    """Wait for the stored answer, without asking anybody for it."""
    async with asyncio.timeout(IN_TIME_SECONDS):
        while not (answers := list(house.read(client).answers)):
            await a_moment()
    return answers[0]


async def killed_at(house: House, client: Client, kind: str, times: int) -> str:
    """Ask, and kill the process at this place of its stream. Returns the id of the answer."""
    exchange = client.ask(TALKING)
    await exchange.seen(kind, times)
    house.kill_process(house.answering(client))
    return (await exchange.end()).answer_id


async def read_on(client: Client, reader: Exchange) -> Stream:
    """Read to the end of the answer, as a page does: a stream that ends without `finish` is resumed."""
    stream = await reader.end()
    async with asyncio.timeout(IN_TIME_SECONDS):
        while stream.finished_as is None:
            stream = await client.resume().end()
    return stream


async def test_killed_turn_is_finished_although_a_cold_start_is_killed_as_well(
    watched: House, kills: ColdKills
) -> None:
    client = watched.client()
    answer_id = await killed_at(watched, client, "text-delta", 3)
    kills.next_start(watched, "run")
    answer = await finished(watched, client)
    assert (answer["status"], answer["client_message_id"]) == ("complete", answer_id)
    assert watched.servers.ledger.read_text().count(answer_id) == 1
    assert kills.left("run") == 0


async def test_a_killed_turn_is_finished_unasked_and_a_reader_sees_it_go_on(watched: House) -> None:
    client = watched.client()
    answer_id = await killed_at(watched, client, "tool-output-available", 1)
    stream, answer = await asyncio.gather(read_on(client, client.resume()), finished(watched, client))
    assert (answer["status"], answer["client_message_id"]) == ("complete", answer_id)
    assert (stream.answer_id, stream.finished_as) == (answer_id, "complete")
    assert watched.servers.ledger.read_text().count(answer_id) == 1


@pytest.mark.parametrize("second_kill", [second_kills.before_takeover, second_kills.after_takeover])
async def test_a_killed_turn_is_finished_although_who_looks_after_it_is_killed_as_well(
    watched: House, second_kill: SecondKill
) -> None:
    client = watched.client()
    answer_id = await killed_at(watched, client, "text-delta", 3)
    await second_kill(watched, client)
    answer = await finished(watched, client)
    assert (answer["status"], answer["client_message_id"]) == ("complete", answer_id)
    assert watched.servers.ledger.read_text().count(answer_id) == 1


async def test_a_background_turn_is_finished_although_its_run_function_is_killed(watched: House) -> None:
    client, message_id = watched.client(), f"left-{new_id()}"
    for _ in range(2):  # the first answer was lost
        assert (await client.leave(TALKING, message_id)).status == 202
    async with asyncio.timeout(IN_TIME_SECONDS):
        while watched.read(client).document["turn"] is None:
            await a_moment()
    reader = client.resume()
    await reader.seen("text-delta", 3)
    session = client.session.encode()
    running = [process for process in watched.emulator.running("run") if session in process.event]
    for process in running:
        watched.kill_process(process.pid)
    answer = await finished(watched, client)
    assert answer["status"] == "complete"
    charged = watched.servers.ledger.read_text().count(answer["client_message_id"])
    assert charged <= 1, "its process may have died in the tool, which does not say that it may run again"
    assert len(watched.read(client).questions) == 1


async def test_a_turn_that_outlives_its_invocation_goes_on_in_the_run_function(servers: Servers, tally: Tally) -> None:
    pause = '[tool:pause {"seconds": 1.5}]'
    prompt = f'[tool:charge {{"order": "o2"}}] [then] {pause} [then] {pause} [then] {pause} [then] [echo:Arrived.]'
    async with open_house(servers, tally, functions=FUNCTIONS, timeout=5) as house:
        client = house.client()
        first = await client.ask(prompt).end()
        assert (first.status, first.finished_as, first.done) == (200, None, False), "it goes on elsewhere"
        stream = await read_on(client, client.resume())
        answer = await finished(house, client)
        assert (answer["status"], answer["client_message_id"]) == ("complete", first.answer_id)
        assert (stream.answer_id, stream.finished_as) == (first.answer_id, "complete")
        assert stream.text.endswith("Arrived.")
        assert servers.ledger.read_text().count(first.answer_id) == 1
