"""A process that is frozen for longer than its lease, and thaws when its session has gone on without it."""

from omniagent.errors import TurnLost
from tests.faults import wire
from tests.faults.house import House


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
    assert (stream.finished_as, stream.done) == (None, True)
    assert stream.event("error")["errorText"] == TurnLost.public
    assert house.check(client).messages == before.messages
