"""Whoever looks at a session while its turn is in trouble: they learn the truth, and never make it worse."""

import asyncio
import uuid

from omniagent.errors import TurnLost
from tests.faults import wire
from tests.faults.client import a_moment
from tests.faults.house import LEASE_SECONDS, House
from tests.faults.truth import stored_text

TALKING = "[slow:20][long:400]"
UNTIL_STOPPED = "[slow:20][long:2000]"
AN_HOUR = 3600.0


async def test_a_reload_during_a_tool_that_blocks_the_process_leaves_one_truth(house: House) -> None:
    client = house.client()
    exchange = client.ask('[tool:block {"seconds": 5}][then][echo:All of it.]')
    await exchange.seen("tool-input-available")
    while len(await client.messages()) < 2 and not exchange.stream.ended:
        await a_moment()  # the lease runs out, and the reader takes the turn for dead
    stream = await exchange.end()
    after = await client.accepted("[echo:next]")

    assert (stream.done, after.finished_as) == (True, "complete")
    answer = house.check(client).answers[0]
    if stream.finished_as is None:
        assert stream.event("error")["errorText"] == TurnLost.public
        assert answer["status"] == "interrupted"
    else:
        assert (answer["status"], stored_text(answer)) == ("complete", "All of it.")


async def test_a_turn_that_nobody_took_outlives_its_lease(house: House) -> None:
    client = house.client()
    exchange = client.ask(UNTIL_STOPPED)
    await exchange.seen("text-delta", 5)
    with house.registry.down():
        await asyncio.sleep(2 * LEASE_SECONDS)
        assert [message["role"] for message in await client.messages()] == ["user"]
    while (await client.stop()).status_code != 202:
        await a_moment()  # until the lease is renewed
    stream = await exchange.end()

    assert stream.finished_as == "cancelled"
    house.check(client)


async def test_the_text_of_a_killed_turn_is_there_when_somebody_comes_after_an_hour(house: House) -> None:
    client = house.client()
    exchange = client.ask(TALKING)
    await exchange.seen("text-delta")
    answering = house.answering(client)
    await client.resume().seen("text-delta")  # what a follower sees is in the log
    house.kill_process(answering)
    dead = await exchange.end()
    house.expire(client, AN_HOUR + LEASE_SECONDS)
    while len(await client.messages()) < 2:
        await a_moment()  # until the lease has run out

    assert stored_text(house.check_interrupted(client, dead)) != ""


async def test_after_a_kill_the_list_tells_the_truth_and_the_message_can_be_deleted(house: House) -> None:
    client = house.client()
    exchange = client.ask(TALKING)
    await exchange.seen("text-delta")
    house.kill(client)
    dead = await exchange.end()
    while (await client.listed())["answering"]:
        await a_moment()  # until the lease has run out; nobody opens the session

    assert dead.message_id is not None
    assert (await client.delete_message(dead.message_id)).status_code == 204
    assert [message["role"] for message in await client.messages()] == ["assistant"]


async def test_a_follower_of_a_turn_that_died_after_its_commit_gets_the_whole_answer(house: House) -> None:
    client = house.client()
    async with house.storage.holding(wire.commit(client.session, "assistant"), "answer") as hold:
        exchange = client.ask("[slow:20][long:20]")
        await exchange.seen("text-delta")
        answering = house.answering(client)
        follower = client.resume()
        await follower.seen("text-delta")
        await hold.reached()
        house.kill_process(answering)
        await exchange.end()
        followed = await follower.end()

    assert (followed.finished_as, followed.done) == ("complete", True)
    assert stored_text(house.check(client).answers[0]) == followed.text


async def test_a_late_stop_ends_no_other_answer(house: House) -> None:
    client = house.client()
    first = await client.say("[echo:done]")
    message_id = uuid.uuid4().hex
    exchange = client.ask(UNTIL_STOPPED, message_id)
    await exchange.seen("text-delta")
    late = [await client.stop(first.message_id), await client.stop(first.answer_id)]
    assert [(stop.status_code, stop.json()["code"]) for stop in late] == [(409, "no_running_turn")] * 2
    assert (await client.stop(message_id)).status_code == 202
    stream = await exchange.end()

    assert stream.finished_as == "cancelled"
    regenerating = client.regenerate(stream.answer_id)
    await regenerating.seen("text-delta")
    assert (await client.stop(stream.answer_id)).status_code == 202
    assert (await regenerating.end()).finished_as == "cancelled"
    house.check(client)
