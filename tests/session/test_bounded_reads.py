"""However long a session is, a turn reads no more of it than the window."""

from datetime import UTC, datetime, timedelta

from omniagent.session.live import Place
from omniagent.session.query import Query
from omniagent.session.summaries import TURNS_PER_READ
from omniagent.session.window import RollingSummary
from tests.fixtures.conversation import QUICK, Conversation, Json
from tests.fixtures.histories import stored_leaf, stored_message
from tests.fixtures.profiler import profiled
from tests.fixtures.stream import outline

LONG = 600


def grow(conversation: Conversation, turns: int) -> None:
    """Write a long history the short way."""
    key, said = conversation.session.key, [{"type": "text", "text": "Something was said here."}]
    session = {"latest_turn_number": turns, "leaf": stored_leaf(key, turns)}
    conversation.database.sessions.update_one({"_id": key}, {"$set": session})
    conversation.database.messages.insert_many(
        stored_message(key, number, role, said, metadata={}, usage=usage)
        for number in range(2, turns + 1)
        for role, usage in (("user", {}), ("assistant", {"outputTokens": 6}))
    )


def messages_of(conversation: Conversation) -> str:
    return f"{conversation.database.name}.messages"


def total(operations: list[Json], what: str) -> int:
    return sum(operation.get(what, 0) for operation in operations)


async def test_a_turn_of_a_long_session_reads_only_the_window(conversation: Conversation) -> None:
    await conversation.ask("[echo:One.]")
    grow(conversation, LONG)
    await conversation.session.add_summary(RollingSummary("A lot was said.", 5, 1, LONG - 2), Place(order=2 * LONG))
    with profiled(conversation.database, ns=messages_of(conversation)) as operations:
        assert outline(await conversation.ask("[echo:Still quick.]"))[-1] == "data-session complete"
    window = 2 * (QUICK.context_max_turns + 1)
    assert total(operations, "nreturned") <= window
    # The transaction that stores the answer looks for one in its place.
    assert total(operations, "docsExamined") <= window + 2
    assert conversation.document["latest_turn_number"] == LONG + 1


async def test_the_window_of_nested_branches_takes_no_more_queries(conversation: Conversation) -> None:
    queries = []
    for number in (1, 2, 3, 4):
        await conversation.ask(f"[echo:{number}.]")
        await conversation.ask(Query(regenerate=True))
        with profiled(conversation.database, ns=messages_of(conversation)) as operations:
            await conversation.session.load(Query("And now?", "new"))
        queries.append(len(operations))
    assert queries == queries[:1] * 4


async def test_a_summary_that_is_long_due_is_made_of_one_piece_beside_the_answer(conversation: Conversation) -> None:
    await conversation.ask("[echo:One.]")
    grow(conversation, LONG)
    with profiled(conversation.database, ns=messages_of(conversation)) as operations:
        stream = await conversation.start("[echo:Still quick.]")
        await stream.ended()
    assert total(operations, "nreturned") <= 2 * (QUICK.context_max_turns + 1) + 2 * TURNS_PER_READ
    assert [summary["end_turn_number"] for summary in conversation.summaries] == [TURNS_PER_READ]


async def test_looking_for_something_to_resume_reads_no_message(conversation: Conversation) -> None:
    await conversation.ask("[echo:One.]")
    long_ago = datetime.now(UTC) - timedelta(minutes=1)
    conversation.database.sessions.update_one({"_id": conversation.session.key}, {"$set": {"updated_at": long_ago}})
    with profiled(conversation.database, ns={"$not": {"$regex": "system"}}) as found:
        assert await conversation.runner().resume() is None
    assert [(operation["ns"].rpartition(".")[2], operation["nreturned"]) for operation in found] == [("sessions", 1)]
