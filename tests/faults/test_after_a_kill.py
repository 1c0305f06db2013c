"""Who comes after a kill: the same message again, somebody who repairs, a reader after an hour."""

import asyncio
import uuid

from tests.faults import wire
from tests.faults.client import a_moment
from tests.faults.house import LEASE_SECONDS, House
from tests.faults.truth import stored_text

SHORT = "[slow:20][long:60]"
AN_HOUR = 3600.0


async def test_same_message_again_finishes_the_same_turn(house: House) -> None:
    client = house.client()
    message_id = uuid.uuid4().hex
    exchange = client.ask(SHORT, message_id)
    await exchange.seen("text-delta", 20)
    house.kill(client)
    dead = await exchange.end()
    again = await client.say(SHORT, message_id)

    assert (again.finished_as, again.turn_number, again.answer_id) == ("complete", dead.turn_number, dead.answer_id)
    assert again.text.startswith(dead.text)
    assert len(house.check(client).questions) == 1


async def test_answer_that_was_stored_is_replayed_though_nobody_was_told(house: House) -> None:
    client = house.client()
    message_id = uuid.uuid4().hex
    async with house.storage.holding(wire.commit(client.session, "assistant"), "answer") as hold:
        exchange = client.ask("[echo:all of it]", message_id)
        await hold.reached()
        house.kill(client)
        await exchange.end()
    requests = len(house.servers.model.requests)
    again = await client.say("[echo:all of it]", message_id)

    assert (again.text, again.finished_as) == ("all of it", "complete")
    assert len(house.servers.model.requests) == requests
    house.check(client)


async def test_second_process_that_is_killed_too_is_followed_by_a_third(house: House) -> None:
    client = house.client()
    message_id = uuid.uuid4().hex
    attempts = []
    for _ in range(2):
        exchange = client.ask(SHORT, message_id)
        await exchange.seen("text-delta", 20)
        house.kill(client)
        attempts.append(await exchange.end())

    last = await client.say(SHORT, message_id)
    assert {attempt.answer_id for attempt in attempts} == {last.answer_id}
    assert (last.turn_number, last.finished_as) == (1, "complete")
    house.check(client)


async def test_takeover_that_is_killed_is_made_by_the_next_request(house: House) -> None:
    client = house.client()
    exchange = client.ask(SHORT)
    await exchange.seen("text-delta", 20)
    house.kill(client)
    dead = await exchange.end()
    async with house.storage.holding(wire.takeover(client.session), "answer") as hold:
        second = asyncio.create_task(client.accepted("[echo:second]"))
        await hold.reached()
        house.kill(client)
        await second

    assert (await client.accepted("[echo:third]")).finished_as == "complete"
    conversation = house.check(client)
    assert [answer["status"] for answer in conversation.answers] == ["complete"] * 3
    assert stored_text(conversation.answers[0]).startswith(dead.text)


async def test_killed_turn_is_finished_by_a_reader_that_comes_after_an_hour(house: House) -> None:
    client = house.client()
    exchange = client.ask(SHORT)
    await exchange.seen("text-delta", 20)
    house.kill(client)
    dead = await exchange.end()
    house.expire(client, AN_HOUR + LEASE_SECONDS)
    while (stream := await client.resume().end()).finished_as is None:
        await a_moment()

    assert (stream.answer_id, stream.finished_as) == (dead.answer_id, "complete")
    house.check(client)
