"""Turns written by hand, for tests of what is stored."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from omniagent.messages import Part, Status, TextPart
from omniagent.persistence.erasure import Erasure
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.session.summary_store import RollingSummary
from omniagent.turns.state import Begin, End, Event, transition

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def open_session(store: ConversationStore, session_id: str = "chat", user: str = "") -> MongoSessionManager:
    """A session of a user of its own, or of the given one."""
    return MongoSessionManager(store, user or f"user:{new_id()}", session_id)


def text(content: str) -> list[Part]:
    return [TextPart(text=content)]


def question(number: int) -> SessionMessage:
    return SessionMessage(f"question-{number}", "user", number, text(f"Question {number}"))


def turn(number: int, **changes: Any) -> LiveTurn:
    answer_id = f"answer-{number}"
    message = question(number)
    return replace(LiveTurn(answer_id, number, "run", answer_id, message.id, NOW, message=message), **changes)


def again(number: int, answer_id: str = "again") -> LiveTurn:
    """A turn that answers a stored message again."""
    return turn(number, id=answer_id, journal=answer_id, message=None, replaces=f"answer-{number}")


def reply(number: int, status: Status = "complete", **changes: Any) -> SessionMessage:
    answer = SessionMessage(f"answer-{number}", "assistant", number, text(f"Answer {number}"), status)
    return replace(answer, **changes)


async def apply(session: SessionManager, event: Event, now: datetime = NOW) -> SessionHead:
    """Apply an event to the session as it is now."""
    change = transition(await session.head() or SessionHead(), event, now)
    assert await session.write(change)
    return change.after


async def begin(session: SessionManager, number: int) -> SessionHead:
    return await apply(session, Begin(turn(number)))


async def end(session: SessionManager, number: int) -> SessionHead:
    return await apply(session, End("run", reply(number)))


async def converse(session: SessionManager, numbers: Iterable[int]) -> None:
    for number in numbers:
        await begin(session, number)
        await end(session, number)


def summary(first: int, last: int) -> RollingSummary:
    return RollingSummary(f"{first}-{last}", 3, first, last)


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
