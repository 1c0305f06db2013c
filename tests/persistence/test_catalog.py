"""The catalog, on the real MongoDB: pages without holes, and only one's own sessions."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from omniagent.errors import InvalidRequest, NotFound, SessionErased
from omniagent.messages import Part, ReasoningPart, SteeringPart, TextPart, ToolPart
from omniagent.persistence import catalog as catalog_module
from omniagent.persistence.catalog import Catalog, Page
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore, Cursor
from omniagent.providers import ModelRequest
from omniagent.session.ids import new_id, user_id_of
from omniagent.session.live import Place, SessionMessage
from omniagent.session.summaries import SummaryPipeline
from omniagent.session.window import RollingSummary
from omniagent.testing import ScriptedModel
from omniagent.turns.state_events import Begin, End, Erase
from tests.persistence.turns import answer_id, answered_again, apply, converse, open_session, reply, summary, tip, turn

Json = dict[str, Any]


@pytest.fixture
def catalog(store: ConversationStore) -> Catalog:
    return Catalog(store)


@pytest.fixture
def session(store: ConversationStore) -> MongoSessionManager:
    return open_session(store)


async def ids(pages: list[Page[Any]]) -> list[str]:
    return [item.id.partition(":")[2] for page in pages for item in page.items]


async def all_pages(catalog: Catalog, user_id: str, limit: int, search: str | None = None) -> list[Page[Any]]:
    pages = [await catalog.list_page(user_id, limit=limit, search=search)]
    while pages[-1].before:
        pages.append(await catalog.list_page(user_id, limit=limit, before=pages[-1].before, search=search))
    return pages


async def test_sessions_created_at_once_are_one(
    catalog: Catalog, store: ConversationStore, database: Database[Json]
) -> None:
    user = f"user:{new_id()}"
    made = await asyncio.gather(*(catalog.create(open_session(store, "same", user)) for _ in range(5)))
    assert sorted(is_new for _, is_new in made) == [False, False, False, False, True]
    assert database.users.count_documents({"client_id": user}) == 1


async def test_pages_hold_every_session_once_newest_first(
    catalog: Catalog, store: ConversationStore, database: Database[Json]
) -> None:
    user, names = f"user:{new_id()}", [f"s{number}" for number in range(7)]
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    for number, name in enumerate(names):
        session = open_session(store, name, user)
        await catalog.create(session)
        # Two of them at the same moment: then the id decides.
        moment = {"updated_at": noon + timedelta(milliseconds=number // 2)}
        database.sessions.update_one({"_id": session.key}, {"$set": moment})
    for limit in (1, 2, 3, 7, 8):
        pages = await all_pages(catalog, session.user_id, limit)
        assert await ids(pages) == names[::-1], limit
        assert [len(page.items) for page in pages[:-1]] == [limit] * (len(pages) - 1)


async def test_a_search_finds_a_part_of_the_name_and_takes_no_pattern(
    catalog: Catalog, store: ConversationStore
) -> None:
    user = f"user:{new_id()}"
    for number, name in enumerate(["Lisbon (May)", "lisbon in June", "Porto", ".*", None]):
        session = open_session(store, f"s{number}", user)
        await catalog.create(session, name)
    for search, found in {"LISBON": {"s0", "s1"}, "(may": {"s0"}, ".*": {"s3"}, "^L": set(), "$": set()}.items():
        assert set(await ids(await all_pages(catalog, session.user_id, 1, search))) == found


@pytest.mark.parametrize(("seconds", "found"), [("SEARCH_SECONDS", {"named"}), ("NAMES_SECONDS", {"said"})])
async def test_a_search_out_of_time_returns_what_it_found(
    catalog: Catalog, store: ConversationStore, monkeypatch: pytest.MonkeyPatch, seconds: str, found: set[str]
) -> None:
    user = f"user:{new_id()}"
    await converse(open_session(store, "said", user), [1])
    await catalog.create(open_session(store, "named", user), "question 1")
    page = await catalog.list_page(user_id_of(user), limit=5, search="question 1")
    assert (set(await ids([page])), page.is_complete) == ({"said", "named"}, True)
    monkeypatch.setattr(catalog_module, seconds, 1e-6)
    page = await catalog.list_page(user_id_of(user), limit=5, search="question 1")
    assert (set(await ids([page])), page.is_complete) == (found, False)


async def test_a_search_reads_every_session_in_pieces(
    catalog: Catalog, store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "SEARCHED_AT_ONCE", 2)
    user = f"user:{new_id()}"
    for number in range(5):
        session = open_session(store, f"s{number}", user)
        await converse(session, [1])
    assert await ids(await all_pages(catalog, session.user_id, 3, "question 1")) == ["s4", "s3", "s2", "s1", "s0"]


async def test_a_search_finds_texts_of_the_user_and_the_model_only(catalog: Catalog, store: ConversationStore) -> None:
    user, said = f"user:{new_id()}", f"Sintra {new_id()} (50%)"
    mine, theirs = open_session(store, "mine", user), open_session(store, "theirs")
    for session in (mine, theirs, open_session(store, "silent", user)):
        await catalog.create(session)
    for session in (mine, theirs):
        question = SessionMessage("question", "user", 1, [TextPart(text=said)], node=new_id())
        await apply(session, Begin(turn(1, session, message_id="question", message=question, question=question.node)))
        call = ToolPart(call_id="1", name="find", input={"text": "hidden"}, output={"text": "hidden"}, done=True)
        joined = SteeringPart(message_id="joined", text="No buses!")
        parts: list[Part] = [ReasoningPart(text="hidden"), call, joined, TextPart(text="Take the train.")]
        await apply(session, End("run", reply(1, session=session, parts=parts)))
    for search in (said.upper(), "the TRAIN", "no buses"):
        assert await ids(await all_pages(catalog, mine.user_id, 1, search)) == ["mine"]
    for search in ("hidden", "si.tra"):
        assert await ids(await all_pages(catalog, mine.user_id, 1, search)) == []


@pytest.mark.parametrize("before", ["", "x", "AAAA", "bm90OmE", "OTk5OTk5OTk5OTk5OTk5OTk5OnM", "ü", "MTox$"])
async def test_an_invented_cursor_is_refused(catalog: Catalog, before: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        await catalog.list_page("nobody", limit=5, before=before)


@pytest.mark.parametrize("after", ["", "1", "a.b", "1.2.3", "-1.2", "99999999999999999999.2"])
async def test_an_invented_cursor_of_a_tree_is_refused(
    catalog: Catalog, session: MongoSessionManager, after: str
) -> None:
    await session.create()
    with pytest.raises(InvalidRequest, match="pass `after` of the previous page"):
        await catalog.tree_page(await catalog.get(session.key), limit=5, after=after)


def test_a_cursor_is_the_text_that_other_releases_read() -> None:
    cursor, text = Cursor(datetime(2026, 11, 19, 7, 0, 0, 5000, tzinfo=UTC), "s1"), "MTc5NTA3MTYwMDAwNTpzMQ"
    assert (cursor.encode(), Cursor.decode(text)) == (text, cursor)


async def test_a_rename_keeps_the_place_in_the_list(catalog: Catalog, session: MongoSessionManager) -> None:
    made, _ = await catalog.create(session)
    renamed = await catalog.rename(session.key, "New")
    assert (renamed.name, renamed.updated_at) == ("New", made.updated_at)


async def test_what_is_not_there_or_anothers_or_being_deleted_is_not_found(
    catalog: Catalog, store: ConversationStore, session: MongoSessionManager
) -> None:
    other, deleted = open_session(store), open_session(store)
    await converse(other, [1])
    await converse(deleted, [1, 2])
    await apply(deleted, Erase())
    await catalog.create(session)
    for call in (
        catalog.get("x:y"),
        catalog.rename("x:y", "x"),
        catalog.delete_message(session.key, answer_id(1, other)),
        catalog.get(deleted.key),
        catalog.rename(deleted.key, "x"),
        catalog.delete_message(deleted.key, "question-1"),
    ):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(SessionErased):
        await catalog.create(deleted)
    assert await ids(await all_pages(catalog, deleted.user_id, 5)) == []


async def test_messages_come_in_whole_turns_newest_page_first(catalog: Catalog, session: MongoSessionManager) -> None:
    await converse(session, range(1, 6))
    await catalog.delete_message(session.key, "question-4")
    for limit in (2, 3, 4, 5, 9, 20):
        shown: list[SessionMessage] = []
        page = await catalog.messages_page(await catalog.get(session.key), limit=limit)
        while True:
            assert 1 <= len(page.items) <= limit
            shown = [*page.items, *shown]
            if page.before is None:
                break
            page = await catalog.messages_page(await catalog.get(session.key), limit=limit, before=int(page.before))
        expected = [f"{kind}-{number}" for number in range(1, 6) for kind in ("question", "answer")]
        expected.remove("question-4")
        assert [message.id.partition("@")[0] for message in shown] == expected
        # Each follows the one before it, also where that is deleted.
        assert [message.parent for message in shown] == ["", *(message.node for message in shown[:-1])]


async def test_the_tree_has_no_gap_where_messages_were_deleted(catalog: Catalog, session: MongoSessionManager) -> None:
    await converse(session, [1, 2, 3])
    for message_id in ("question-1", answer_id(1, session), "question-3", answer_id(3, session)):
        await catalog.delete_message(session.key, message_id)
    for limit in (1, 9):
        leaf, page = await catalog.tree_page(await catalog.get(session.key), limit=limit)
        nodes = page.items
        while page.before is not None:
            _, page = await catalog.tree_page(await catalog.get(session.key), limit=limit, after=page.before)
            nodes = [*nodes, *page.items]
        assert [(each.id, each.parent) for each in nodes] == [
            ("question-2", ""),
            (answer_id(2, session), nodes[0].node),
        ]
        assert leaf == answer_id(2, session)


def echo(request: ModelRequest) -> str:
    """A summary that repeats everything it was made of."""
    return request.messages[0].text


async def rebuilt(session: MongoSessionManager) -> str:
    """Rebuild the summary, as the queue does until it is done, and return it."""
    while not (await SummaryPipeline(session, ScriptedModel(summary=echo)).rebuild()).is_done:
        pass
    newest = await session.latest_summary(await tip(session))
    assert newest is not None
    return newest.content


async def test_a_rebuild_that_continues_after_a_message_was_deleted_does_not_mention_it(
    catalog: Catalog, session: MongoSessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omniagent.session.summaries.TURNS_PER_READ", 2)
    await converse(session, range(1, 8))
    left = iter([1.0, 1.0, 0.0])
    cut_off = await SummaryPipeline(session, ScriptedModel(summary=echo)).rebuild(time_left=lambda: next(left))
    assert (cut_off.end_turn_number, cut_off.is_done) == (4, False)
    await catalog.delete_message(session.key, "question-3")
    content = await rebuilt(session)
    assert "Question 3" not in content
    assert all(f"Question {number}" in content for number in (1, 2, 4, 5, 6))


async def test_a_rebuild_after_a_deletion_leaves_no_summary_of_any_branch_that_mentions_it(
    catalog: Catalog, session: MongoSessionManager
) -> None:
    await converse(session, range(1, 6))
    pipeline = SummaryPipeline(session, ScriptedModel(summary=echo))
    first = await tip(session)
    await pipeline.update()
    second = (await answered_again(session, 5)).leaf
    third = (await answered_again(session, 3, branch=2)).leaf
    await pipeline.update()
    paths = (first, second, third)
    for at in paths:
        assert "Question 2" in (await session.latest_summary(at) or summary(1, 1)).content
    await catalog.delete_message(session.key, "question-2")
    content = await rebuilt(session)
    assert "Question 1" in content
    for at in paths:
        left = await session.latest_summary(at)
        assert left is None or "Question 2" not in left.content
        await pipeline.update(at=at)
        assert "Question 2" not in (await session.latest_summary(at) or summary(1, 1)).content


async def test_a_branch_that_leaves_a_long_summary_behind_gets_its_own(
    catalog: Catalog, session: MongoSessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omniagent.session.summaries.TURNS_PER_READ", 2)
    await converse(session, range(1, 8))
    await rebuilt(session)
    at = (await answered_again(session, 5)).leaf
    assert await session.latest_summary(at) is None, "the only one covers six turns"
    summarized = await SummaryPipeline(session, ScriptedModel(summary=echo)).update()
    assert (summarized.end_turn_number, summarized.is_done) == (4, True)
    newest = await session.latest_summary(at)
    assert newest is not None
    assert "Question 4" in newest.content
    assert "Question 5" not in newest.content


@pytest.mark.parametrize("rebuild", [True, False])
async def test_a_summary_in_progress_is_not_stored_after_a_message_was_deleted(
    catalog: Catalog, session: MongoSessionManager, rebuild: bool
) -> None:
    await converse(session, range(1, 5))

    async def delete(request: ModelRequest) -> str:
        await catalog.delete_message(session.key, "question-2")
        return echo(request)

    pipeline = SummaryPipeline(session, ScriptedModel(summary=delete))
    summarized = await (pipeline.rebuild() if rebuild else pipeline.update())
    assert (summarized.written, summarized.is_done) == (0, not rebuild)
    assert await session.latest_summary(await tip(session)) is None
    assert "Question 2" not in await rebuilt(session)


async def test_a_rebuild_is_not_done_if_a_message_is_deleted_before_it_is_published(
    catalog: Catalog, session: MongoSessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    await converse(session, range(1, 5))
    publish_drafts = session.publish_drafts

    async def delete_first(at: Place | None) -> bool:
        monkeypatch.undo()
        await catalog.delete_message(session.key, "question-2")
        return await publish_drafts(at)

    monkeypatch.setattr(session, "publish_drafts", delete_first)
    assert not (await SummaryPipeline(session, ScriptedModel(summary=echo)).rebuild()).is_done
    assert "Question 2" not in await rebuilt(session)


async def test_an_update_does_not_continue_a_summary_that_a_rebuild_has_replaced(
    catalog: Catalog, session: MongoSessionManager
) -> None:
    await converse(session, range(1, 4))
    assert await session.add_summary(RollingSummary("Question 2 was asked.", 1, 1, 2), await tip(session))
    await catalog.delete_message(session.key, "question-2")

    async def rebuild(request: ModelRequest) -> str:
        at = await tip(session)
        assert await session.add_summary(summary(1, 2), at, draft=True)
        assert await session.publish_drafts(at)
        return echo(request)

    await converse(session, [4])
    assert (await SummaryPipeline(session, ScriptedModel(summary=rebuild)).update()).written == 0
    newest = await session.latest_summary(await tip(session))
    assert newest is not None
    assert newest.content == "1-2"
