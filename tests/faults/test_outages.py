"""MongoDB gone when a turn ends, DynamoDB gone while it runs.

Without MongoDB at the start: `tests/functions/test_through_emulator_connections.py`.
"""

from tests.faults import wire
from tests.faults.house import House


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
