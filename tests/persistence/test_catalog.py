"""The catalog, on the real MongoDB: pages without holes, whole deletions, and only one's own sessions."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from omniagent.errors import InvalidRequest, NotFound, TurnInProgress
from omniagent.messages import TextPart
from omniagent.persistence.catalog import Catalog, Page
from omniagent.persistence.documents import Summary
from omniagent.persistence.store import ConversationStore, Owner, TurnEnd, TurnStart
from omniagent.session.identity import new_id, session_key, user_id_of

Json = dict[str, Any]


def new_owner() -> Owner:
    client_id = f"user:{new_id()}"
    return Owner(user_id_of(client_id), client_id)


@pytest.fixture
def catalog(store: ConversationStore) -> Catalog:
    return Catalog(store)


@pytest.fixture
def owner() -> Owner:
    return new_owner()


async def begin(store: ConversationStore, owner: Owner, key: str, number: int) -> str:
    turn_id = f"answer-{number}"
    parts = [TextPart(text=f"Question {number}")]
    await store.begin_turn(TurnStart(owner, key, turn_id, number, f"question-{number}", parts))
    return turn_id


async def answer(store: ConversationStore, owner: Owner, key: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        turn_id = await begin(store, owner, key, number)
        await store.finish_turn(TurnEnd(key, turn_id, number, [TextPart(text=f"Answer {number}")], "complete"))


def summary(key: str, first: int, last: int) -> Summary:
    return Summary(
        session_id=key, content=f"{first}-{last}", token_count=1, start_turn_number=first, end_turn_number=last
    )


async def ids(pages: list[Page[Any]]) -> list[str]:
    return [item.id.partition(":")[2] for page in pages for item in page.items]


async def all_pages(catalog: Catalog, user_id: str, limit: int, search: str | None = None) -> list[Page[Any]]:
    pages = [await catalog.list_page(user_id, limit=limit, search=search)]
    while pages[-1].before:
        pages.append(await catalog.list_page(user_id, limit=limit, before=pages[-1].before, search=search))
    return pages


async def test_creating_a_session_twice_returns_the_first(catalog: Catalog, owner: Owner) -> None:
    key = session_key(owner.user_id, "trip")
    made, is_new = await catalog.create(owner, key, "Lisbon")
    again, is_new_again = await catalog.create(owner, key, "Porto")
    assert (made.name, is_new, again.name, is_new_again) == ("Lisbon", True, "Lisbon", False)
    assert (again.id, again.created_at) == (made.id, made.created_at)


async def test_sessions_created_at_once_are_one(catalog: Catalog, owner: Owner, database: Database[Json]) -> None:
    key = session_key(owner.user_id, "same")
    made = await asyncio.gather(*(catalog.create(owner, key) for _ in range(5)))
    assert sorted(is_new for _, is_new in made) == [False, False, False, False, True]
    assert database.users.count_documents({"client_id": owner.client_id}) == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
async def test_pages_hold_every_session_once_newest_first(
    catalog: Catalog, owner: Owner, database: Database[Json], limit: int
) -> None:
    names = [f"s{number}" for number in range(7)]
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    for number, name in enumerate(names):
        await catalog.create(owner, session_key(owner.user_id, name))
        # Two of them at the same moment: then the id decides.
        moment = {"updated_at": noon + timedelta(milliseconds=number // 2)}
        database.sessions.update_one({"_id": session_key(owner.user_id, name)}, {"$set": moment})
    pages = await all_pages(catalog, owner.user_id, limit)
    assert await ids(pages) == names[::-1]
    assert [len(page.items) for page in pages[:-1]] == [limit] * (len(pages) - 1)


async def test_a_list_holds_only_ones_own_sessions(catalog: Catalog, owner: Owner) -> None:
    other = new_owner()
    await catalog.create(owner, session_key(owner.user_id, "mine"))
    await catalog.create(other, session_key(other.user_id, "theirs"))
    assert await ids(await all_pages(catalog, owner.user_id, 10)) == ["mine"]


async def test_a_search_finds_a_part_of_the_name_and_takes_no_pattern(catalog: Catalog, owner: Owner) -> None:
    for number, name in enumerate(["Lisbon (May)", "lisbon in June", "Porto", ".*", None]):
        await catalog.create(owner, session_key(owner.user_id, f"s{number}"), name)
    for search, found in {"LISBON": {"s0", "s1"}, "(may": {"s0"}, ".*": {"s3"}, "^L": set(), "$": set()}.items():
        assert set(await ids(await all_pages(catalog, owner.user_id, 1, search))) == found


@pytest.mark.parametrize("before", ["", "x", "AAAA", "bm90OmE", "OTk5OTk5OTk5OTk5OTk5OTk5OnM", "ü", "MTox$"])
async def test_an_invented_cursor_is_refused(catalog: Catalog, owner: Owner, before: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        await catalog.list_page(owner.user_id, limit=5, before=before)


async def test_a_rename_keeps_the_place_in_the_list(catalog: Catalog, owner: Owner) -> None:
    key = session_key(owner.user_id, "old")
    made, _ = await catalog.create(owner, key)
    renamed = await catalog.rename(key, "New")
    assert (renamed.name, renamed.updated_at) == ("New", made.updated_at)


async def test_a_name_that_was_chosen_meanwhile_stands(catalog: Catalog, owner: Owner) -> None:
    key = session_key(owner.user_id, "s")
    await catalog.create(owner, key)
    assert (await catalog.rename_unchanged(key, "By the model", was=None)).name == "By the model"
    assert (await catalog.rename_unchanged(key, "Too late", was=None)).name == "By the model"


async def test_what_is_not_there_is_not_found(catalog: Catalog, owner: Owner) -> None:
    key = session_key(owner.user_id, "nowhere")
    for call in (
        catalog.get(key),
        catalog.rename(key, "x"),
        catalog.rename_unchanged(key, "x", was=None),
        catalog.delete(key),
        catalog.delete_message(key, "m"),
    ):
        with pytest.raises(NotFound):
            await call


async def test_messages_come_in_whole_turns_newest_page_first(
    catalog: Catalog, store: ConversationStore, owner: Owner
) -> None:
    key = session_key(owner.user_id, "s")
    await answer(store, owner, key, range(1, 6))
    await catalog.delete_message(key, "question-4")
    for limit in (2, 3, 4, 5, 9, 20):
        said: list[str] = []
        page = await catalog.messages_page(key, limit=limit)
        while True:
            assert 1 <= len(page.items) <= limit
            said = [message.client_message_id for message in page.items] + said
            if page.before is None:
                break
            page = await catalog.messages_page(key, limit=limit, before=int(page.before))
        expected = [f"{kind}-{number}" for number in range(1, 6) for kind in ("question", "answer")]
        assert said == [message_id for message_id in expected if message_id != "question-4"]


async def test_a_message_of_the_running_turn_cannot_be_deleted(
    catalog: Catalog, store: ConversationStore, owner: Owner
) -> None:
    key = session_key(owner.user_id, "s")
    await answer(store, owner, key, [1])
    turn_id = await begin(store, owner, key, 2)
    with pytest.raises(TurnInProgress):
        await catalog.delete_message(key, "question-2")
    await catalog.delete_message(key, "answer-1")
    await store.finish_turn(TurnEnd(key, turn_id, 2, [], "complete"))
    await catalog.delete_message(key, "question-2")
    left = [message.client_message_id for message in (await catalog.messages_page(key, limit=9)).items]
    assert left == ["question-1", "answer-2"]


async def test_another_users_message_cannot_be_deleted(
    catalog: Catalog, store: ConversationStore, owner: Owner
) -> None:
    key, other = session_key(owner.user_id, "s"), new_owner()
    await answer(store, owner, key, [1])
    await catalog.create(other, session_key(other.user_id, "s"))
    with pytest.raises(NotFound):
        await catalog.delete_message(session_key(other.user_id, "s"), "question-1")


async def test_deleting_a_session_leaves_nothing_of_it_and_everything_else(
    catalog: Catalog, store: ConversationStore, owner: Owner, database: Database[Json]
) -> None:
    gone, kept = (session_key(owner.user_id, name) for name in ("a", "ab"))
    for key in (gone, kept):
        await answer(store, owner, key, [1, 2])
        assert await catalog.add_summary(summary(key, 1, 1))
    await catalog.delete(gone)
    for collection in (database.messages, database.summaries):
        assert collection.count_documents({"session_id": gone}) == 0
        assert collection.count_documents({"session_id": kept}) > 0
    with pytest.raises(NotFound):
        await catalog.get(gone)


async def test_deleting_a_user_leaves_nothing_of_theirs(
    catalog: Catalog, store: ConversationStore, owner: Owner, database: Database[Json]
) -> None:
    other = new_owner()
    for who in (owner, other):
        for name in ("a", "b"):
            await answer(store, who, session_key(who.user_id, name), [1])
            await catalog.add_summary(summary(session_key(who.user_id, name), 1, 1))
    assert sorted(await catalog.recent_keys(owner.user_id)) == [session_key(owner.user_id, n) for n in ("a", "b")]
    await catalog.delete_user(owner.user_id)
    await catalog.delete_user(owner.user_id)
    mine, theirs = ({"$regex": f"^{who.user_id}:"} for who in (owner, other))
    for collection in (database.messages, database.summaries):
        assert collection.count_documents({"session_id": mine}) == 0
        assert collection.count_documents({"session_id": theirs}) >= 2
    assert database.users.count_documents({"_id": owner.user_id}) == 0
    assert await ids(await all_pages(catalog, owner.user_id, 5)) == []
    assert len(await ids(await all_pages(catalog, other.user_id, 5))) == 2


async def test_a_deleted_session_takes_the_answer_of_its_running_turn_with_it(
    catalog: Catalog, store: ConversationStore, owner: Owner, database: Database[Json]
) -> None:
    key = session_key(owner.user_id, "s")
    turn_id = await begin(store, owner, key, 1)
    await catalog.delete(key)
    with pytest.raises(Exception, match="no longer holds"):
        await store.finish_turn(TurnEnd(key, turn_id, 1, [TextPart(text="late")], "complete"))
    assert database.messages.count_documents({"session_id": key}) == 0


async def test_turns_are_read_in_order_some_at_a_time(catalog: Catalog, store: ConversationStore, owner: Owner) -> None:
    key = session_key(owner.user_id, "s")
    await answer(store, owner, key, range(1, 7))
    for message_id in ("question-3", "answer-3", "question-4", "answer-4"):
        await catalog.delete_message(key, message_id)
    pages = [[m.client_message_id for m in page] async for page in catalog.turns_between(key, 2, 6, at_a_time=2)]
    assert pages == [[f"question-{number}", f"answer-{number}"] for number in (2, 5, 6)]


async def test_summaries_follow_one_another_without_gap_or_overlap(
    catalog: Catalog, store: ConversationStore, owner: Owner
) -> None:
    key = session_key(owner.user_id, "s")
    await answer(store, owner, key, range(1, 6))
    await begin(store, owner, key, 6)
    assert not await catalog.add_summary(summary(key, 2, 3))
    assert await catalog.add_summary(summary(key, 1, 3))
    assert not await catalog.add_summary(summary(key, 1, 4))
    assert not await catalog.add_summary(summary(key, 3, 4))
    assert not await catalog.add_summary(summary(key, 4, 6)), "turn 6 is still running"
    assert await catalog.add_summary(summary(key, 4, 5))
    latest = await catalog.latest_summary(key)
    assert latest is not None
    assert latest.content == "4-5"


async def test_of_racing_summaries_one_is_kept(
    catalog: Catalog, store: ConversationStore, owner: Owner, database: Database[Json]
) -> None:
    key = session_key(owner.user_id, "s")
    await answer(store, owner, key, [1, 2, 3])
    added = await asyncio.gather(*(catalog.add_summary(summary(key, 1, end)) for end in (1, 2, 3, 3)))
    assert sorted(added) == [False, False, False, True]
    assert database.summaries.count_documents({"session_id": key}) == 1


async def test_a_session_deleted_while_it_is_summarized_stays_deleted(
    catalog: Catalog, store: ConversationStore, owner: Owner, database: Database[Json]
) -> None:
    for number in range(8):
        key = session_key(owner.user_id, f"s{number}")
        await answer(store, owner, key, [1])
        await asyncio.gather(catalog.add_summary(summary(key, 1, 1)), catalog.delete(key))
        assert database.summaries.count_documents({"session_id": key}) == 0


async def test_a_rebuilt_summary_takes_the_place_of_all(
    catalog: Catalog, store: ConversationStore, owner: Owner, database: Database[Json]
) -> None:
    key = session_key(owner.user_id, "s")
    await answer(store, owner, key, [1, 2, 3])
    for number in (1, 2):
        await catalog.add_summary(summary(key, number, number))
    assert not await catalog.replace_summaries(key, summary(key, 1, 4)), "there is no turn 4"
    assert await catalog.replace_summaries(key, summary(key, 1, 3))
    assert [found["content"] for found in database.summaries.find({"session_id": key})] == ["1-3"]
    assert await catalog.replace_summaries(key, None)
    assert database.summaries.count_documents({"session_id": key}) == 0
    assert not await catalog.replace_summaries(session_key(owner.user_id, "gone"), None)
