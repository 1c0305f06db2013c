"""Deletion, on the real MongoDB: marked first, then in pieces that can be repeated."""

import asyncio
from typing import Any

import pytest
from pymongo.database import Database

from omniagent.errors import NotFound, SessionErased
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.session.ids import new_id
from omniagent.session.tree import Place
from omniagent.turns.state import End, transition
from tests.persistence.turns import NOW, begin, converse, erase, erase_user, open_session, reply, summary

Json = dict[str, Any]


@pytest.fixture
def catalog(store: ConversationStore) -> Catalog:
    return Catalog(store)


def left(database: Database[Json], prefix: str) -> int:
    """How many documents are left of a user, or of a session."""
    key = {"$gte": prefix, "$lt": prefix + "\x7f"}
    return (
        database.users.count_documents({"_id": key})
        + database.sessions.count_documents({"_id": key})
        + database.messages.count_documents({"session_id": key})
        + database.summaries.count_documents({"session_id": key})
    )


def fill(database: Database[Json], session: MongoSessionManager, messages: int) -> None:
    database.messages.insert_many(
        {
            "_id": new_id(),
            "session_id": session.key,
            "turn_number": number // 2 + 2,
            "branch": 0,
            "place": number + 4,
            "role": ("user", "assistant")[number % 2],
            "client_message_id": f"m{number}",
            "parts": [],
        }
        for number in range(messages)
    )


async def test_a_deleted_session_leaves_nothing_and_everything_else(
    catalog: Catalog, store: ConversationStore, database: Database[Json]
) -> None:
    user = f"user:{new_id()}"
    gone, kept = (open_session(store, name, user) for name in ("a", "ab"))
    for session in (gone, kept):
        await converse(session, [1, 2, 3])
        assert await session.add_summary(summary(1, 1), Place(order=9))
        assert await session.add_summary(summary(1, 2), Place(order=9), draft=True)
    await erase(catalog, gone.key)
    assert left(database, gone.key + "\x00") == 0
    assert database.messages.count_documents({"session_id": gone.key}) == 0
    assert database.summaries.count_documents({"session_id": gone.key}) == 0
    assert database.messages.count_documents({"session_id": kept.key}) == 6
    with pytest.raises(NotFound):
        await catalog.get(gone.key)


async def test_a_long_session_is_deleted_in_pieces_and_after_a_kill(
    catalog: Catalog, store: ConversationStore, database: Database[Json]
) -> None:
    session = open_session(store)
    await converse(session, [1])
    fill(database, session, 3000)
    await catalog.mark_erased(session.key)
    assert not await catalog.erase_some(session.key, 400)
    assert database.messages.count_documents({"session_id": session.key}) == 2602
    # Whoever did it was killed here. Somebody else repeats all of it.
    catalog = Catalog(store)
    assert await catalog.mark_erased(session.key)
    pieces = 1
    while not await catalog.erase_some(session.key, 400):
        pieces += 1
    assert pieces == 7
    assert left(database, session.key) == 0
    assert await catalog.erase_some(session.key, 400)
    assert not await catalog.mark_erased(session.key)


async def test_a_repeated_deletion_leaves_a_new_session_of_the_same_id_alone(
    catalog: Catalog, store: ConversationStore, database: Database[Json]
) -> None:
    session = open_session(store)
    await converse(session, [1])
    await erase(catalog, session.key)
    await converse(session, [1])
    assert await catalog.erase_some(session.key)
    assert database.messages.count_documents({"session_id": session.key}) == 2


async def test_a_deleted_session_takes_the_answer_of_its_running_turn_with_it(
    catalog: Catalog, store: ConversationStore, database: Database[Json]
) -> None:
    session = open_session(store)
    head = await begin(session, 1)
    await erase(catalog, session.key)
    assert not await session.write(transition(head, End("run", reply(1, session=session)), NOW))
    assert left(database, session.key) == 0


async def test_a_session_deleted_while_it_is_written_stays_deleted(
    catalog: Catalog, store: ConversationStore, database: Database[Json]
) -> None:
    for number in range(6):
        session = open_session(store, f"s{number}")
        await converse(session, [1, 2])
        await asyncio.gather(
            session.add_summary(summary(1, 1), Place(order=9)),
            erase(catalog, session.key),
            begin(session, 3),
            return_exceptions=True,
        )
        assert left(database, session.key) == 0


async def test_a_user_of_many_sessions_is_deleted_in_pieces(
    catalog: Catalog, store: ConversationStore, database: Database[Json]
) -> None:
    user, other = f"user:{new_id()}", open_session(store)
    sessions = [open_session(store, f"s{number}", user) for number in range(8)]
    await converse(sessions[0], [1, 2])
    for session in sessions[1:]:
        await converse(session, [1])
    await sessions[0].add_summary(summary(1, 1), Place(order=9))
    await converse(other, [1])
    keys = await catalog.session_keys(sessions[0].user_id, limit=6)
    keys += await catalog.session_keys(sessions[0].user_id, after=keys[-1], limit=6)
    assert keys == sorted(session.key for session in sessions)

    user_id, unmarked = sessions[0].user_id, {"user_id": sessions[0].user_id, "erased_at": None}
    marks = [await catalog.mark_user_erased(user_id, 3) for _ in range(3)]
    assert marks == [False, False, True]
    assert database.sessions.count_documents(unmarked) == 0, "all are gone for everybody before the first is deleted"
    assert not await catalog.forget_user(user_id), "the user goes last"
    assert await catalog.user_is_erased(user_id)
    await erase_user(catalog, user_id)
    assert left(database, sessions[0].user_id) == 0
    assert left(database, other.user_id) == 4
    await erase_user(catalog, sessions[0].user_id)


async def test_nothing_of_a_user_begins_while_they_are_deleted(
    catalog: Catalog, store: ConversationStore, database: Database[Json]
) -> None:
    user = f"user:{new_id()}"
    known, late = open_session(store, "known", user), open_session(store, "late", user)
    await converse(known, [1])
    await catalog.mark_user_erased(known.user_id)
    for call in (begin(late, 1), catalog.create(late), begin(known, 2)):
        with pytest.raises(SessionErased):
            await call
    await erase_user(catalog, known.user_id)
    assert left(database, known.user_id) == 0
    again = open_session(store, "again", user)
    await converse(again, [1])
    assert len((await catalog.list_page(again.user_id, limit=5)).items) == 1


async def test_a_user_deleted_while_turns_begin_leaves_nothing(
    catalog: Catalog, store: ConversationStore, database: Database[Json]
) -> None:
    for _ in range(4):
        user = f"user:{new_id()}"
        sessions = [open_session(store, f"s{number}", user) for number in range(6)]
        user_id = sessions[0].user_id
        await converse(sessions.pop(), [1])
        beginning = (begin(session, 1) for session in sessions)
        await asyncio.gather(erase_user(catalog, user_id), *beginning, return_exceptions=True)
        assert left(database, user_id) == 0
