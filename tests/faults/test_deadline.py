"""A function that has little time: the turn ends itself before Lambda ends the process."""

from collections.abc import AsyncIterator

import pytest

from omniagent.errors import StorageUnavailable
from tests.faults import wire
from tests.faults.house import House, Servers, open_house
from tests.faults.truth import Tally, stored_text

TIMEOUT_SECONDS = 12.0
MARGIN_SECONDS = 5.0


@pytest.fixture(scope="module")
async def brief(servers: Servers, tally: Tally) -> AsyncIterator[House]:
    """A house whose chat function may run for a few seconds only."""
    settings = {"DEADLINE_MARGIN_SECONDS": str(MARGIN_SECONDS)}
    async with open_house(servers, tally, settings, timeout=TIMEOUT_SECONDS) as house:
        await house.warm_up(1)
        yield house


async def test_a_turn_out_of_time_stores_what_it_has_and_says_so(brief: House) -> None:
    client = brief.client()
    stream = await client.say("[slow:20][long:2000]")

    assert stream.event("abort")["reason"] == "deadline"
    assert (stream.finished_as, stream.done) == ("cancelled", True)
    assert (await client.say("[echo:next]")).finished_as == "complete"
    assert stored_text(brief.check(client).answers[0]) == stream.text != ""


async def test_a_tool_that_may_outlast_the_deadline_gets_the_time_that_is_left(brief: House) -> None:
    client = brief.client()
    stream = await client.say('[tool:pause {"seconds": 0}][then][echo:In time.]')

    assert stream.event("tool-output-available")["output"] == "waited 0 seconds"
    assert (stream.text, stream.finished_as) == ("In time.", "complete")
    brief.check(client)


async def test_an_answer_that_cannot_be_stored_ends_with_an_error_and_is_repaired_by_who_reads_next(
    brief: House,
) -> None:
    client = brief.client()
    async with brief.storage.holding(wire.commit(client.session, "assistant")) as hold:
        exchange = client.ask("[echo:Worth keeping.]")
        await hold.reached()
        with brief.storage.down():
            hold.lose()
            stream = await exchange.end()
    assert (stream.text, stream.finished_as, stream.done) == ("Worth keeping.", None, True)
    assert stream.kinds[-1] == "error"
    assert stream.event("error")["errorText"] == StorageUnavailable.public

    _, answer = await client.messages()
    assert answer["metadata"]["status"] == "interrupted"
    assert answer["parts"][-1]["text"] == "Worth keeping."
    assert (await client.say("[echo:next]")).finished_as == "complete"
    brief.check(client)
