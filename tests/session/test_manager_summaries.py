"""The promises of `SessionManager` for summaries."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from omniagent.session.live import ROOT
from omniagent.session.manager import SessionManager
from omniagent.session.window import RollingSummary
from omniagent.turns.state_events import Switch
from tests.persistence.turns import answered_again, apply, converse, question, reply, summary, tip
from tests.session.sessions import Open


@pytest.mark.parametrize("draft", [False, True])
async def test_a_summary_continues_the_newest_on_its_path(session: SessionManager, draft: bool) -> None:
    await converse(session, range(1, 5 + 1))
    at = await tip(session)
    for wrong in (summary(2, 3), summary(1, 0)):
        assert not await session.add_summary(wrong, at, draft=draft)
    assert await session.add_summary(summary(1, 2), at, draft=draft)
    for wrong in (summary(1, 2), summary(2, 3), summary(4, 4)):
        assert not await session.add_summary(wrong, at, draft=draft)
    assert await session.add_summary(summary(3, 4), at, draft=draft)
    assert await session.latest_summary(at, draft=draft) == summary(3, 4)
    assert await session.latest_summary(at.up_to(3), draft=draft) == summary(1, 2), "it ends later than the path"
    assert await session.latest_summary(at, draft=not draft) is None


async def test_a_branch_uses_the_newest_summary_of_its_own_ancestors(session: SessionManager) -> None:
    await converse(session, range(1, 5 + 1))
    first = await tip(session)
    for span in ((1, 2), (3, 4)):
        assert await session.add_summary(summary(*span), first)
    second = (await answered_again(session, 3)).leaf
    assert await session.latest_summary(second) == summary(1, 2), "3-4 covers an answer of another branch"
    assert await session.add_summary(summary(3, 3, branch=1), second)
    assert await session.latest_summary(second) == summary(3, 3, branch=1)
    assert await session.latest_summary(question(3, session).place) == summary(1, 2)
    assert await session.latest_summary(first) == summary(3, 4)
    third = (await answered_again(session, 5, branch=2)).leaf
    assert await session.latest_summary(third) == summary(3, 4), "all of it is before the fork"


async def test_there_is_no_summary_of_no_session(session: SessionManager) -> None:
    assert not await session.add_summary(summary(1, 1), ROOT)
    assert not await session.publish_drafts(ROOT)


async def test_of_equal_summaries_at_the_same_moment_one_is_stored(open_session: Open) -> None:
    await converse(open_session(), range(1, 3 + 1))
    at = await tip(open_session())
    added = await asyncio.gather(*(open_session().add_summary(summary(1, end), at) for end in (1, 2, 2, 1)))
    assert added.count(True) == 1


async def test_a_published_draft_is_the_only_summary(session: SessionManager) -> None:
    await converse(session, range(1, 6 + 1))
    other = (await answered_again(session, 2)).leaf
    at = (await apply(session, Switch(reply(6, session=session).place))).tip
    for span in ((1, 1), (2, 2), (3, 5)):
        assert await session.add_summary(summary(*span), at)
    assert await session.add_summary(summary(2, 2, branch=1), other)
    for span in ((1, 2), (3, 4)):
        assert await session.add_summary(summary(*span), at, draft=True)
    assert await session.publish_drafts(at)
    assert await session.latest_summary(at) == replace(summary(3, 4), start_turn_number=1)
    assert await session.latest_summary(other) is None, "that of another branch may mention what was deleted"
    assert await session.latest_summary(at, draft=True) is None
    assert not await session.publish_drafts(at), "there is no other"
    assert await session.add_summary(summary(5, 5), at)


async def test_all_summaries_are_deleted_if_there_is_nothing_left_to_summarize(session: SessionManager) -> None:
    await converse(session, range(1, 3 + 1))
    at = await tip(session)
    for is_draft in (False, True):
        assert await session.add_summary(summary(1, 2), at, draft=is_draft)
    assert not await session.publish_drafts(None)
    assert [await session.latest_summary(at, draft=is_draft) for is_draft in (False, True)] == [None, None]


async def test_a_rebuild_that_races_new_summaries_leaves_no_overlap(open_session: Open) -> None:
    await converse(open_session(), range(1, 12 + 1))
    at = await tip(open_session())
    for number in range(1, 6):
        await open_session().add_summary(summary(number, number), at, draft=True)

    async def extend() -> list[RollingSummary]:
        """What a turn does beside its answer: continue what is the newest summary now."""
        added = []
        for _ in range(6):
            newest = await open_session().latest_summary(at)
            after = newest.end_turn_number if newest else 0
            addition = summary(after + 1, after + 2)
            if after < 10 and await open_session().add_summary(addition, at):
                added.append(addition)
        return added

    _, published = await asyncio.gather(extend(), open_session().publish_drafts(at))
    assert published
    rest = await extend()
    newest = await open_session().latest_summary(at)
    assert newest is not None
    assert newest.end_turn_number >= 10
    spans = [(addition.start_turn_number, addition.end_turn_number) for addition in rest]
    assert all(end + 1 == begin for (_, end), (begin, _) in itertools.pairwise(spans))
