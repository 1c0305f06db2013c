"""Turns written by hand, for tests of what is stored."""

from collections.abc import Iterable

from omniagent.messages import TextPart
from omniagent.persistence.erasure import Erasure
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.session.manager import SessionMessage, TurnStart, new_id
from omniagent.session.summary_store import RollingSummary


def open_session(store: ConversationStore, session_id: str = "chat", user: str = "") -> MongoSessionManager:
    """A session of a user of its own, or of the given one."""
    return MongoSessionManager(store, user or f"user:{new_id()}", session_id)


async def begin(session: MongoSessionManager, number: int) -> str:
    """Begin a turn, as one that was planned from the session, and return its id."""
    turn_id, head = f"answer-{number}", await session.head() if number > 1 else None
    question = [TextPart(text=f"Question {number}")]
    seen_turn_id = head.latest_turn_id if head is not None else None
    await session.begin_turn(TurnStart(turn_id, number, f"question-{number}", question, seen_turn_id=seen_turn_id))
    return turn_id


def reply(number: int) -> SessionMessage:
    return SessionMessage(f"answer-{number}", "assistant", number, [TextPart(text=f"Answer {number}")])


async def converse(session: MongoSessionManager, numbers: Iterable[int]) -> None:
    for number in numbers:
        await begin(session, number)
        await session.finish_turn(reply(number))


def summary(first: int, last: int) -> RollingSummary:
    return RollingSummary(f"{first}-{last}", 1, first, last)


async def erase(erasure: Erasure, key: str) -> None:
    """Delete a session with everything in it."""
    assert await erasure.mark_erased(key)
    while not await erasure.erase_some(key):
        pass


async def erase_user(erasure: Erasure, user_id: str) -> None:
    """Delete a user with all their sessions."""
    while not await erasure.mark_user_erased(user_id):
        pass
    while not await erasure.forget_user(user_id):
        for key in await erasure.session_keys(user_id):
            await erasure.mark_erased(key)
            while not await erasure.erase_some(key):
                pass
