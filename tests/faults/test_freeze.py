"""A process that is frozen for longer than its lease, and thaws when its session has gone on without it."""

from omniagent.errors import TurnLost
from tests.faults import wire
from tests.faults.client import Stream
from tests.faults.house import House


def knows_that_it_lost(stream: Stream) -> bool:
    return stream.finished_as is None and stream.done and stream.event("error")["errorText"] == TurnLost.public


async def test_a_turn_that_thaws_does_not_write_over_its_successor(house: House) -> None:
    client = house.client()
    exchange = client.ask("[slow:20][long:400]")
    await exchange.seen("text-delta", 20)
    frozen = house.answering(client)
    house.freeze(frozen)
    after = await client.accepted("[echo:in the meantime]")
    before = house.check(client)
    house.thaw(frozen)
    stream = await exchange.end()

    assert after.finished_as == "complete"
    assert knows_that_it_lost(stream)
    assert house.check(client).messages == before.messages
    assert (await client.say("[echo:next]")).turn_number == 3


async def test_a_transaction_that_thaws_is_not_committed_any_more(house: House) -> None:
    client = house.client()
    async with house.storage.holding(wire.commit(client.session, "assistant")) as hold:
        exchange = client.ask("[echo:too late]")
        await hold.reached()
        frozen = house.answering(client)
        house.freeze(frozen)
        after = await client.accepted("[echo:in the meantime]")
        before = house.check(client)
        hold.let_pass()
        house.thaw(frozen)
        stream = await exchange.end()

    assert after.finished_as == "complete"
    assert knows_that_it_lost(stream)
    assert house.check(client).messages == before.messages


async def test_a_message_that_thaws_is_not_stored_after_its_successors(house: House) -> None:
    client = house.client()
    async with house.storage.holding(wire.insert(client.session, "user")) as hold:
        exchange = client.ask("[echo:too late]")
        await hold.reached()
        frozen = house.answering(client)
        house.freeze(frozen)
        after = await client.accepted("[echo:in the meantime]")
        hold.let_pass()
        house.thaw(frozen)
        stream = await exchange.end()

    assert after.finished_as == "complete"
    assert stream.status == 409
    assert len(house.check(client).questions) == 1
