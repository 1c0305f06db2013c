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


async def test_regeneration_that_is_killed_is_finished_by_its_reader(house: House) -> None:
    client = house.client()
    first = await client.say("[slow:20][long:60]")
    exchange = client.regenerate(first.answer_id)
    await exchange.seen("text-delta", 20)
    answering = house.answering(client)
    follower = client.resume()
    await follower.seen("start")
    house.emulator.kill(answering)
    dead = await exchange.end()
    *_, stream = await client.read_on(follower)  # it had shown a step that is generated again

    assert (stream.answer_id, stream.finished_as) == (dead.answer_id, "complete")
    assert [answer["client_message_id"] for answer in house.check(client).answers] == [dead.answer_id]


async def test_same_message_again_finishes_the_same_turn(house: House) -> None:
    client, prompt = house.client(), "[slow:20][long:60]"
    dead, _ = await house.killed(client, prompt, lambda stream: stream.kinds.count("text-delta") >= 20)
    again = await client.say(prompt, dead.message_id)

    assert (again.finished_as, again.turn_number, again.answer_id) == ("complete", dead.turn_number, dead.answer_id)
    assert again.text.startswith(dead.text)
    assert len(house.check(client).questions) == 1


async def test_a_transaction_that_thaws_is_not_committed_any_more(house: House) -> None:
    client = house.client()
    async with house.storage.holding(wire.commit(client.session, "assistant")) as hold:
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


# Outages. Without MongoDB at the start: `tests/functions/test_through_emulator_connections.py`.


async def test_without_mongodb_at_the_end_the_answer_waits_for_it(house: House) -> None:
    """The commit was made, though nobody was told. A lost request is in `tests/runner/test_turn`."""
    client = house.client()
    async with house.storage.holding(wire.commit(client.session, "assistant"), "answer") as hold:
        exchange = client.ask("[echo:stored]")
        await hold.reached()
        with house.storage.down():
            hold.lose()
            await house.logged("answer not stored yet", exchange.stream)
        stream = await exchange.end()

    assert (stream.text, stream.finished_as) == ("stored", "complete")
    house.check(client)


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


async def test_without_dynamodb_a_turn_answers_but_runs_no_tool(house: House) -> None:
    client, ledger = house.client(), house.servers.ledger
    with house.registry.down():
        plain = await client.say("[echo:hello]")
        charged = await client.say('[tool:charge {"order": "without-dynamodb"}]')
    assert (plain.text, plain.finished_as) == ("hello", "complete")
    assert charged.finished_as == "failed"
    assert "without-dynamodb" not in ledger.read_text()
    house.check(client)
