"""Who comes after a kill: the same message again, somebody who repairs, a reader after an hour."""

import asyncio
import uuid

from tests.faults import wire
from tests.faults.client import a_moment
from tests.faults.house import LEASE_SECONDS, House
from tests.faults.truth import stored_text

STALLED = "[stall] [echo:This is what was said before the silence.]"
TALKING = "[slow:20][long:400]"
SHORT = "[slow:20][long:60]"
AN_HOUR = 3600.0


async def test_the_same_message_is_answered_in_the_same_turn(house: House) -> None:
    client = house.client()
    message_id = uuid.uuid4().hex
    exchange = client.ask(SHORT, message_id)
    await exchange.seen("text-delta", 20)
    house.kill(client)
    dead = await exchange.end()

    # While its lease has not run out, what there is of it is followed to its end.
    while (again := await client.say(SHORT, message_id)).finished_as == "interrupted":
        assert again.event("abort")["reason"] == "interrupted"
        house.check_interrupted(client, dead)

    assert (again.finished_as, again.turn_number) == ("complete", dead.turn_number)
    assert len(house.check(client).questions) == 1


async def test_an_answer_that_was_stored_is_replayed_though_nobody_was_told_of_it(house: House) -> None:
    client = house.client()
    message_id = uuid.uuid4().hex
    async with house.storage.holding(wire.commit(client.session, "assistant"), "answer") as hold:
        exchange = client.ask("[echo:all of it]", message_id)
        await hold.reached()
        house.kill(client)
        await exchange.end()
    requests = len(house.servers.model.requests)
    while (again := await client.say("[echo:all of it]", message_id)).finished_as == "interrupted":
        await a_moment()  # the lease has just run out, and with it the turn that was followed

    assert (again.text, again.finished_as) == ("all of it", "complete")
    assert len(house.servers.model.requests) == requests
    house.check(client)


async def test_a_second_attempt_that_is_killed_too_leaves_what_it_had_sent(house: House) -> None:
    client = house.client()
    message_id = uuid.uuid4().hex
    attempts = []
    for _ in range(2):
        exchange = client.ask(SHORT, message_id)
        await exchange.seen("text-delta", 20)
        house.kill(client)
        attempts.append(await exchange.end())
        while len(await client.messages()) < 2:
            await a_moment()  # until the lease has run out

    assert attempts[0].answer_id != attempts[1].answer_id
    house.check_interrupted(client, attempts[1])
    assert (await client.say(SHORT, message_id)).turn_number == 1
    house.check(client)


async def test_a_repair_that_is_killed_is_made_by_who_comes_next(house: House) -> None:
    client = house.client()
    exchange = client.ask(TALKING)
    await exchange.seen("text-delta", 20)
    house.kill(client)
    dead = await exchange.end()
    async with house.storage.holding(wire.insert(client.session, "assistant"), "answer") as hold:
        second = asyncio.create_task(client.accepted("[echo:second]"))
        await hold.reached()
        house.kill(client)
        await second

    assert (await client.accepted("[echo:third]")).finished_as == "complete"
    house.check_interrupted(client, dead)
    assert len(house.check(client).questions) == 2


async def test_the_text_of_a_killed_turn_is_there_when_somebody_comes_after_an_hour(house: House) -> None:
    client = house.client()
    exchange = client.ask(STALLED)
    await exchange.seen("text-delta")
    answering = house.answering(client)
    await client.resume().seen("text-delta")  # what a follower sees is in the log
    house.kill_process(answering)
    dead = await exchange.end()
    house.expire(client, AN_HOUR + LEASE_SECONDS)
    while len(await client.messages()) < 2:
        await a_moment()  # until the lease has run out

    assert stored_text(house.check_interrupted(client, dead)) != ""
