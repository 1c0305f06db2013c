"""MongoDB, DynamoDB and the model, gone for a while: at the start of a turn, in the middle, at its end."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.faults import wire
from tests.faults.house import House
from tests.fixtures.proxy import Side


async def test_without_mongodb_at_the_start_nothing_is_claimed_and_nothing_begun(house: House) -> None:
    client = house.client()
    with house.storage.down():
        stream = await client.say("[echo:hello]")
        assert (stream.status, stream.problem()["code"]) == (503, "storage_unavailable")
        assert int(stream.headers["retry-after"]) >= 1
    assert house.read(client).messages == []

    # Not even for the length of a lease.
    assert (await client.say("[echo:hello]")).finished_as == "complete"
    house.check(client)


@pytest.mark.parametrize("side", ["request", "answer"], ids=["not committed", "committed, though nobody was told"])
async def test_without_mongodb_at_the_end_the_answer_waits_for_it(house: House, side: Side) -> None:
    client = house.client()
    async with house.storage.holding(wire.commit(client.session, "assistant"), side) as hold:
        exchange = client.ask("[echo:stored]")
        await hold.reached()
        with house.storage.down():
            hold.lose()
            await house.logged("answer not stored yet", exchange.stream)
        stream = await exchange.end()

    assert (stream.text, stream.finished_as) == ("stored", "complete")
    house.check(client)


@contextmanager
def silent(house: House) -> Iterator[None]:
    """DynamoDB takes requests and never answers."""
    house.servers.aws.pause()
    try:
        yield
    finally:
        house.servers.aws.resume()


@pytest.mark.parametrize("hangs", [False, True], ids=["refusing", "hanging"])
async def test_without_dynamodb_a_turn_goes_on_and_is_stored(house: House, hangs: bool) -> None:
    client = house.client()
    exchange = client.ask("[slow:20][long:150]")
    await exchange.seen("text-delta", 5)
    with silent(house) if hangs else house.registry.down():
        stream = await exchange.end()
        await house.logged("its lease will run out", stream)

    assert (stream.finished_as, stream.done) == ("complete", True)
    assert (await client.accepted("[echo:next]")).finished_as == "complete"
    house.check(client)


async def test_without_dynamodb_at_the_start_nothing_is_begun(house: House) -> None:
    client = house.client()
    with house.registry.down():
        stream = await client.say("[echo:hello]")
    assert (stream.status, stream.problem()["code"]) == (503, "registry_unavailable")
    assert int(stream.headers["retry-after"]) >= 1
    assert house.read(client).messages == []
    assert (await client.say("[echo:hello]")).finished_as == "complete"


async def test_a_model_that_breaks_off_leaves_what_it_said_and_the_fallback(house: House) -> None:
    client = house.client()
    exchange = client.ask("[slow:20][long:400]")
    await exchange.seen("text-delta", 10)
    house.servers.answers.cut()
    stream = await exchange.end()

    assert (stream.finished_as, stream.kinds[-1]) == ("failed", "error")
    assert (await client.say("[echo:next]")).finished_as == "complete"
    house.check(client)
