"""The promises of `SessionManager` for summaries."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from omniagent.session.manager import SessionManager
from omniagent.session.summary_store import RollingSummary
from tests.persistence.turns import converse, summary
from tests.session.sessions import Open


@pytest.mark.parametrize("draft", [False, True])
async def test_a_summary_continues_the_newest_and_stops_before_the_latest_turn(
    session: SessionManager, draft: bool
) -> None:
    await converse(session, range(1, 5 + 1))
    for wrong in (summary(2, 3), summary(1, 5), summary(1, 6), summary(1, 0)):
        assert not await session.add_summary(wrong, draft=draft)
    assert await session.add_summary(summary(1, 2), draft=draft)
    for wrong in (summary(1, 2), summary(2, 3), summary(4, 4), summary(3, 5)):
        assert not await session.add_summary(wrong, draft=draft)
    assert await session.add_summary(summary(3, 4), draft=draft)
    assert await session.latest_summary(draft=draft) == summary(3, 4)
    assert await session.latest_summary(draft=not draft) is None


async def test_there_is_no_summary_of_no_session(session: SessionManager) -> None:
    assert not await session.add_summary(summary(1, 1))
    assert not await session.publish_draft()


async def test_of_equal_summaries_at_the_same_moment_one_is_stored(open_session: Open) -> None:
    await converse(open_session(), range(1, 3 + 1))
    added = await asyncio.gather(*(open_session().add_summary(summary(1, end)) for end in (1, 2, 2, 1)))
    assert added.count(True) == 1


async def test_a_published_draft_is_the_only_summary(session: SessionManager) -> None:
    await converse(session, range(1, 6 + 1))
    for span in ((1, 1), (2, 2), (3, 5)):
        assert await session.add_summary(summary(*span))
    for span in ((1, 2), (3, 4)):
        assert await session.add_summary(summary(*span), draft=True)
    assert await session.publish_draft()
    assert await session.latest_summary() == replace(summary(3, 4), start_turn_number=1)
    assert await session.latest_summary(draft=True) is None
    assert not await session.publish_draft(), "there is no other"
    assert await session.add_summary(summary(5, 5))


async def test_dropped_summaries_are_gone(session: SessionManager) -> None:
    await converse(session, range(1, 3 + 1))
    for is_draft in (False, True):
        assert await session.add_summary(summary(1, 2), draft=is_draft)
    await session.drop_summaries()
    assert [await session.latest_summary(draft=is_draft) for is_draft in (False, True)] == [None, None]


async def test_a_rebuild_that_races_new_summaries_leaves_no_overlap(open_session: Open) -> None:
    await converse(open_session(), range(1, 12 + 1))
    for number in range(1, 6):
        await open_session().add_summary(summary(number, number), draft=True)

    async def extend() -> list[RollingSummary]:
        """What a turn does beside its answer: continue what is the newest summary now."""
        added = []
        for _ in range(6):
            newest = await open_session().latest_summary()
            after = newest.end_turn_number if newest else 0
            addition = summary(after + 1, after + 2)
            if await open_session().add_summary(addition):
                added.append(addition)
        return added

    _, published = await asyncio.gather(extend(), open_session().publish_draft())
    assert published
    rest = await extend()
    newest = await open_session().latest_summary()
    assert newest is not None
    assert newest.end_turn_number >= 10
    spans = [(addition.start_turn_number, addition.end_turn_number) for addition in rest]
    assert all(end + 1 == begin for (_, end), (begin, _) in itertools.pairwise(spans))
