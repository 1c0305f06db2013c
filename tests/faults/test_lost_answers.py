"""A server did what it was asked, and its answer got lost: nobody can tell that from a request that got lost."""

from contextlib import AsyncExitStack

from tests.faults import wire
from tests.faults.house import House
from tests.fixtures.proxy import Hold, Proxy
from tests.fixtures.wire_formats import Matches

ATTEMPTS = 3
"""How often the AWS SDK sends a request."""


async def lose_answers(stack: AsyncExitStack, proxy: Proxy, matches: Matches, times: int) -> list[Hold]:
    holds = [await stack.enter_async_context(proxy.holding(matches, "answer")) for _ in range(times)]
    for hold in holds:
        hold.lose()
    return holds


async def test_a_tick_that_was_written_unknowingly_is_not_written_differently(house: House) -> None:
    """Whoever has read it already would miss what was added to it."""
    client = house.client()
    async with AsyncExitStack() as stack:
        holds = await lose_answers(stack, house.registry, wire.chunk(client.session, 1), ATTEMPTS)
        async with house.registry.holding(wire.chunk(client.session, 2)) as later:
            exchange = client.ask("[slow:20][long:2000]")
            await holds[0].reached()
            follower = client.resume()
            await follower.seen("start")  # it has read the chunk, and shows its step when the next one comes
            await holds[-1].reached()
            await later.reached()
        await client.stop()
        stream, followed = await exchange.end(), await follower.end()

    assert stream.finished_as == "cancelled"
    assert followed.frames == stream.frames
    house.check(client)


async def test_a_commit_whose_answer_is_lost_is_made_once(house: House) -> None:
    client = house.client()
    async with AsyncExitStack() as stack:
        commits = [wire.commit(client.session, "assistant")]
        holds = [hold for matches in commits for hold in await lose_answers(stack, house.storage, matches, 1)]
        stream = await client.say("[echo:once]")
        for hold in holds:
            await hold.reached()

    assert (stream.text, stream.finished_as) == ("once", "complete")
    house.check(client)


async def test_a_question_whose_write_is_answered_by_nobody_is_stored_once(house: House) -> None:
    client = house.client()
    await client.say("[echo:first]")
    async with AsyncExitStack() as stack:
        # The driver sends it once more by itself. Then the transaction finds that the turn has begun.
        holds = await lose_answers(stack, house.storage, wire.begin(client.session), 2)
        stream = await client.say("[echo:once]")
        for hold in holds:
            await hold.reached()

    assert (stream.text, stream.finished_as, stream.turn_number) == ("once", "complete", 2)
    house.check(client)
