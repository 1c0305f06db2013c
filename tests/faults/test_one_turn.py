"""Readers and regenerations of a turn: seen by clients of processes that share nothing."""

import asyncio

from tests.faults import wire
from tests.faults.house import House

STALLED = "[stall] [echo:one two three four]"


async def test_readers_get_the_same_bytes_from_other_processes_though_the_one_who_asked_has_left(house: House) -> None:
    client = house.client()
    asked = client.ask(STALLED)
    await asked.seen("text-delta")
    early = client.resume()
    await early.seen("text-delta")
    await asked.leave()
    late = client.resume()
    await late.seen("text-delta")
    await client.stop()
    streams = await asyncio.gather(early.end(), late.end())

    assert streams[0].frames == streams[1].frames
    assert (streams[0].finished_as, streams[0].done) == ("cancelled", True)
    assert streams[0].frames.startswith(asked.stream.frames)
    assert len({stream.headers["x-amzn-requestid"] for stream in (asked.stream, *streams)}) == 3
    house.check(client)


async def test_a_regeneration_that_is_killed_leaves_what_it_had_shown(house: House) -> None:
    client = house.client()
    asked = client.ask(STALLED)
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
    exchange = client.ask(STALLED)
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
