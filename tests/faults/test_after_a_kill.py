"""Who comes after a kill: the same message again, a reader, somebody who waits as long as they are told."""

import asyncio
import uuid

from omniagent.messages import ORPHAN_ERROR
from tests.faults import wire
from tests.faults.client import a_moment
from tests.faults.house import SETTINGS, House

TALKING = "[slow:20][long:400]"
SHORT = "[slow:20][long:60]"


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


async def test_the_same_message_takes_over_a_turn_that_never_began(house: House) -> None:
    client = house.client()
    message_id = uuid.uuid4().hex
    async with house.registry.holding(wire.claim(client.session), "answer") as hold:
        exchange = client.ask("[echo:hello]", message_id)
        await hold.reached()
        house.kill(client)
        await exchange.end()
    again = await client.say("[echo:hello]", message_id)

    assert (again.status, again.finished_as, again.turn_number) == (200, "complete", 1)
    house.check(client)


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


async def test_whoever_reads_the_messages_finds_the_answer_as_far_as_it_had_come(house: House) -> None:
    client = house.client()
    exchange = client.ask('[echo:Let me see.][tool:pause {"seconds": 15}]')
    await exchange.seen("tool-input-available")
    async with house.registry.holding(wire.renewal(client.session)) as tick:
        await tick.reached()
    async with house.registry.holding(wire.renewal(client.session)) as tick:
        # By the second tick the first has been logged.
        await tick.reached()
        house.kill(client)
    await exchange.end()
    while len(messages := await client.messages()) < 2:
        await a_moment()  # until the lease has run out

    question, answer = messages
    assert question["role"] == "user"
    assert answer["metadata"]["status"] == "interrupted"
    text, tool = (part for part in answer["parts"] if part["type"] != "step-start")
    assert text["text"] == "Let me see."
    assert (tool["state"], tool["errorText"]) == ("output-error", ORPHAN_ERROR)
    house.check(client)


async def test_waiting_as_long_as_one_is_told_is_enough(house: House) -> None:
    client = house.client()
    exchange = client.ask(TALKING)
    await exchange.seen("text-delta")
    refused = await client.say("[echo:next]")
    house.kill(client)
    await exchange.end()
    assert refused.status == 409
    await asyncio.sleep(int(refused.headers["retry-after"]))

    assert (await client.say("[echo:next]")).finished_as == "complete"
    house.check(client)


async def test_turns_that_were_killed_do_not_count_as_running(house: House) -> None:
    """Or else their user would be locked out of new sessions."""
    user = f"user-{uuid.uuid4().hex[:8]}"
    at_most = int(SETTINGS["MAX_RUNNING_TURNS_PER_USER"])
    clients = [house.client(user) for _ in range(at_most)]
    for client in clients:
        await client.ask("[stall:first]").seen("start")
    late = house.client(user)
    refused = await late.say("[echo:one too many]")
    assert (refused.status, refused.problem()["code"]) == (429, "too_many_turns")

    for client in clients:
        house.kill(client)
    while (accepted := await late.say("[echo:hello]")).status == 429:
        await a_moment()  # until the leases have run out
    assert accepted.finished_as == "complete"
