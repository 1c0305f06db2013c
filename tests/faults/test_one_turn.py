"""One turn at a time, and one turn for each message: seen by clients of processes that share nothing."""

import asyncio
import math
import uuid

from tests.faults import wire
from tests.faults.house import LEASE_SECONDS, House

UNTIL_STOPPED = "[slow:20][long:2000]"


async def test_a_second_message_is_refused_with_the_time_to_wait_and_leaves_nothing(house: House) -> None:
    client = house.client()
    exchange = client.ask(UNTIL_STOPPED)
    await exchange.seen("text-delta")
    refused = await client.say("[echo:me too]")
    await client.stop()
    await exchange.end()

    assert (refused.status, refused.problem()["code"]) == (409, "turn_in_progress")
    assert 1 <= int(refused.headers["retry-after"]) <= math.ceil(LEASE_SECONDS)
    assert refused.headers["content-type"] == "application/problem+json"
    assert len(house.check(client).questions) == 1


async def test_the_same_message_joins_the_stream_that_runs_from_its_first_event(house: House) -> None:
    client = house.client()
    message_id = uuid.uuid4().hex
    before = len(house.servers.model.requests)
    first = client.ask(UNTIL_STOPPED, message_id)
    await first.seen("text-delta", 20)
    second = client.ask(UNTIL_STOPPED, message_id)
    await second.seen("text-delta")
    await client.stop()
    streams = await asyncio.gather(first.end(), second.end())

    assert streams[0].frames == streams[1].frames
    assert streams[0].headers["x-amzn-requestid"] != streams[1].headers["x-amzn-requestid"]
    assert len(house.servers.model.requests) == before + 1
    assert len(house.check(client).questions) == 1


async def test_an_answered_message_is_replayed_without_the_model(house: House) -> None:
    client = house.client()
    message_id = uuid.uuid4().hex
    first = await client.say("[tool:blink][then][echo:said once]", message_id)
    before = len(house.servers.model.requests)
    again = await client.say("[tool:blink][then][echo:said once]", message_id)

    assert (again.text, again.answer_id, again.turn_number) == (first.text, first.answer_id, first.turn_number)
    assert again.finished_as == "complete"
    assert len(house.servers.model.requests) == before
    assert len(house.check(client).questions) == 1


async def test_two_who_resume_get_the_same_bytes_as_the_one_who_asked(house: House) -> None:
    client = house.client()
    asked = client.ask(UNTIL_STOPPED)
    await asked.seen("text-delta", 10)
    early = client.resume()
    await early.seen("text-delta", 20)
    late = client.resume()
    await late.seen("text-delta")
    await client.stop()
    streams = await asyncio.gather(asked.end(), early.end(), late.end())

    assert {stream.frames for stream in streams} == {streams[0].frames}
    assert streams[0].done


async def test_a_turn_goes_on_when_its_only_reader_leaves_and_can_be_resumed(house: House) -> None:
    client = house.client()
    asked = client.ask(UNTIL_STOPPED)
    await asked.seen("text-delta", 5)
    shown = len(asked.stream.text)
    await asked.leave()
    resuming = client.resume()
    await resuming.until(lambda stream: len(stream.text) > shown)
    await client.stop()
    resumed = await resuming.end()

    assert (resumed.finished_as, resumed.done) == ("cancelled", True)
    assert resumed.body.startswith(asked.stream.body)
    house.check(client)


async def test_an_answer_that_has_just_ended_is_streamed_to_whoever_resumes(house: House) -> None:
    """A page that read the messages before the end and resumes after it would otherwise show no answer."""
    client = house.client()
    before = await client.resume().end()
    stream = await client.say("[echo:hello]")
    after = await client.resume().end()

    assert (before.status, after.status) == (204, 200)
    assert (after.answer_id, after.text, after.finished_as) == (stream.answer_id, "hello", "complete")


async def test_a_stop_that_reaches_another_process_ends_the_turn_with_what_it_has(house: House) -> None:
    client = house.client()
    exchange = client.ask(UNTIL_STOPPED)
    await exchange.seen("text-delta", 5)
    assert (await client.stop()).status_code == 202
    stream = await exchange.end()

    assert stream.event("abort")["reason"] == "cancelled"
    assert stream.finished_as == "cancelled"
    assert (await client.say("[echo:next]")).finished_as == "complete"
    house.check(client)


async def test_an_answer_is_regenerated_in_its_place(house: House) -> None:
    client = house.client()
    first = await client.say("[long:20]")
    again = await client.regenerate(first.answer_id).end()

    assert again.turn_number == first.turn_number
    assert again.answer_id != first.answer_id
    conversation = house.check(client)
    assert [answer["client_message_id"] for answer in conversation.answers] == [again.answer_id]


async def test_a_regeneration_that_is_killed_leaves_what_it_had_shown(house: House) -> None:
    client = house.client()
    asked = client.ask(UNTIL_STOPPED)
    await asked.seen("text-delta")
    await client.stop()
    first = await asked.end()
    exchange = client.regenerate(first.answer_id)
    await exchange.seen("text-delta")
    answering = house.answering(client)
    follower = client.resume()
    await follower.seen("text-delta")  # what a follower sees is in the log
    house.kill_process(answering)
    dead = await exchange.end()
    await follower.end()
    after = await client.accepted("[echo:next]")

    assert after.finished_as == "complete"
    assert house.check(client).answers[0]["client_message_id"] == dead.answer_id
    house.check_interrupted(client, dead)


async def test_a_regeneration_that_is_killed_before_it_shows_anything_keeps_the_old_answer(house: House) -> None:
    client = house.client()
    exchange = client.ask("[stall] [echo:one two three four]")
    await exchange.seen("text-delta")
    await client.stop()
    first = await exchange.end()
    async with house.storage.holding(wire.restart(client.session), "answer") as hold:
        regenerating = client.regenerate(first.answer_id)
        await hold.reached()
        house.kill(client)
        await regenerating.end()
    after = await client.accepted("[echo:next]")

    assert after.finished_as == "complete"
    assert house.check(client).answers[0]["client_message_id"] == first.answer_id
