"""Readers, kills, a freeze and outages of one turn, seen by clients of processes that share nothing."""

import asyncio
import os
import signal

from omniagent.errors import TurnLost
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


async def test_a_transaction_that_thaws_is_not_committed_any_more(house: House) -> None:
    client = house.client()
    async with house.storage.holding(wire.commit(client.session)) as hold:
        exchange = client.ask("[echo:too late]")
        await hold.reached()
        frozen = house.answering(client)
        os.killpg(frozen, signal.SIGSTOP)
        after = await client.accepted("[echo:in the meantime]")
        before = house.check(client)
        hold.let_pass()
        os.killpg(frozen, signal.SIGCONT)
        stream = await exchange.end()

    assert after.finished_as == "complete"
    assert (stream.finished_as, stream.done) == (None, True)
    assert stream.event("error")["errorText"] == TurnLost.public
    assert house.check(client).messages == before.messages


# Outages of MongoDB are in `tests/functions/test_through_emulator_connections` and `tests/runner/test_turn`.


async def test_while_dynamodb_hangs_a_turn_goes_on_and_is_stored(house: House) -> None:
    client = house.client()
    exchange = client.ask("[slow:20][long:150]")
    await exchange.seen("text-delta", 5)
    house.servers.aws.pause()
    try:
        stream = await exchange.end()
        await house.logged("end of the journal not written", stream)
    finally:
        house.servers.aws.resume()

    assert (stream.finished_as, stream.done) == ("complete", True)
    assert (await client.accepted("[echo:next]")).finished_as == "complete"
    house.check(client)
