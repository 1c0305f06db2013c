"""What a turn leaves in MongoDB, beyond what every session manager promises."""

import asyncio
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.database import Database

from omniagent.errors import StorageConflict
from omniagent.messages import TextPart
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.orphans import APP_NAME
from omniagent.persistence.store import ConversationStore
from omniagent.session.manager import SessionHead, TurnStart, new_id
from tests.persistence.turns import begin, converse, open_session, reply, summary

Json = dict[str, Any]


async def test_a_first_turn_leaves_one_user_one_session_one_message(
    store: ConversationStore, database: Database[Json]
) -> None:
    session = MongoSessionManager(store, f"user:{new_id()}", "chat", category="gold")
    await session.admit(5, "t")
    await begin(session, 1)
    [user] = database.users.find({"_id": session.user_id})
    assert (user["client_id"], user["category"], user["running"]) == (session.user, "gold", [f"{session.key}#t"])
    [document] = database.sessions.find({"_id": session.key})
    assert (document["latest_turn_number"], document["active_turn_id"]) == (1, "answer-1")
    [message] = database.messages.find({"session_id": session.key})
    assert (message["role"], message["status"], message["usage"]) == ("user", "complete", {})


async def test_a_draft_that_races_inline_summaries_leaves_no_overlapping_spans(
    store: ConversationStore, database: Database[Json]
) -> None:
    user = f"user:{new_id()}"
    for name in ("a", "b", "c", "d"):
        await converse(open_session(store, name, user), [1])
        key = open_session(store, name, user).key
        database.sessions.update_one({"_id": key}, {"$set": {"latest_turn_number": 8}})  # seven more are not read here

        async def extend(name: str = name) -> None:
            for _ in range(4):
                session = open_session(store, name, user)
                newest = await session.latest_summary()
                after = newest.end_turn_number if newest else 0
                await session.add_summary(summary(after + 1, after + 2))

        rebuild = open_session(store, name, user)
        for number in (1, 2, 3):
            assert await rebuild.add_summary(summary(number, number), draft=True)
        await asyncio.gather(extend(), rebuild.publish_draft(), extend())
        spans = sorted(
            (found["start_turn_number"], found["end_turn_number"])
            for found in database.summaries.find({"session_id": rebuild.key, "draft": False})
        )
        assert spans[0][0] == 1
        assert [begin for begin, _ in spans[1:]] == [end + 1 for _, end in spans[:-1]]
        assert database.summaries.count_documents({"session_id": rebuild.key, "draft": True}) == 0


async def test_a_message_id_that_the_session_has_already_begins_no_turn(store: ConversationStore) -> None:
    session = open_session(store)
    await converse(session, [1])
    with pytest.raises(StorageConflict):
        await session.begin_turn(TurnStart("other", 2, "question-1", [TextPart(text="x")]))
    assert await session.head() == SessionHead(1)


async def test_turns_of_one_user_begin_at_the_same_moment(store: ConversationStore) -> None:
    user = f"user:{new_id()}"
    sessions = [open_session(store, f"s{number}", user) for number in range(8)]
    assert [await session.admit(8, "t") for session in sessions] == [()] * 8
    await asyncio.gather(*(begin(session, 1) for session in sessions))
    await asyncio.gather(*(session.finish_turn(reply(1)) for session in sessions))
    assert [await session.head() for session in sessions] == [SessionHead(1)] * 8


@pytest.mark.parametrize("write", ["rename", "continue", "summarize"])
async def test_the_transaction_of_a_dead_process_holds_nobody_up(
    mongod: str, store: ConversationStore, database: Database[Json], write: str
) -> None:
    session = open_session(store)
    await converse(session, [1])
    turn_id = await begin(session, 2)
    async with AsyncMongoClient[Json](mongod, appname=APP_NAME) as dead, dead.start_session() as transaction:
        await transaction.start_transaction()
        await dead[database.name].sessions.update_one(
            {"_id": session.key}, {"$set": {"fence": "dead"}}, session=transaction
        )
        # Nobody goes on with it: whoever meets its lock first ends it when it has been idle for long enough.
        if write == "rename":
            assert await session.rename("Trip", was=None)
            assert await session.mark_erased()
        elif write == "continue":  # as after a process that died in the commit of its answer
            await session.begin_turn(TurnStart(turn_id, 2, "question-2", [], attempt=1))
            assert (await session.finish_turn(reply(2), attempt=1)).status == "complete"
        else:
            assert await Catalog(store).note_summary_queued(session.key, rebuild=False)
        await transaction.end_session()
