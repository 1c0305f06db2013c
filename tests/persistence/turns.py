"""Turns written by hand, for tests of what is stored."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from omniagent.messages import Part, Status, TextPart
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn, Place, SessionHead, SessionMessage, Spot
from omniagent.session.manager import SessionManager
from omniagent.session.query import Query
from omniagent.session.window import RollingSummary
from omniagent.turns.state import transition
from omniagent.turns.state_events import Begin, End, Event

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def open_session(store: ConversationStore, session_id: str = "chat", user: str = "") -> MongoSessionManager:
    """A session of a user of its own, or of the given one."""
    return MongoSessionManager(store, user or f"user:{new_id()}", session_id)


def text(content: str) -> list[Part]:
    return [TextPart(text=content)]


def node(name: str, session: SessionManager | None) -> str:
    """The node of a message: unique in the whole collection."""
    return name if session is None else f"{name}@{session.key}"


def answer_id(number: int, session: SessionManager | None = None) -> str:
    return node(f"answer-{number}", session)


def question(number: int, session: SessionManager | None = None) -> SessionMessage:
    name = f"question-{number}"
    parent = answer_id(number - 1, session) if number > 1 else ""
    return SessionMessage(name, "user", number, text(f"Question {number}"), node=node(name, session), parent=parent)


def asking(number: int) -> Query:
    """The request that brings a question."""
    return Query(f"Question {number}", f"question-{number}")


def turn(number: int, session: SessionManager | None = None, **changes: Any) -> LiveTurn:
    answer, message = answer_id(number, session), question(number, session)
    live = LiveTurn(answer, number, "run", answer, message.id, NOW, message=message, question=message.node)
    return replace(live, **changes)


def again(number: int, session: SessionManager | None = None, *, branch: int = 1) -> LiveTurn:
    """A turn that answers a stored message again: in a branch of its own."""
    answer, spot = node(f"again-{number}-{branch}", session), Spot.after(question(number).place, fork=branch)
    old = answer_id(number, session)
    return turn(
        number, session, id=answer, journal=answer, message=None, replaces=old, branch=branch, lineage=spot.lineage
    )


def reply(
    number: int, status: Status = "complete", *, session: SessionManager | None = None, **changes: Any
) -> SessionMessage:
    answer = SessionMessage(answer_id(number, session), "assistant", number, text(f"Answer {number}"), status)
    return replace(answer, parent=question(number, session).node, **changes)


def reply_again(number: int, session: SessionManager | None = None, *, branch: int = 1) -> SessionMessage:
    """The answer of `again`."""
    live = again(number, session, branch=branch)
    return reply(number, session=session, id=live.id, node=live.id, branch=live.branch, lineage=live.lineage)


async def apply(session: SessionManager, event: Event, now: datetime = NOW) -> SessionHead:
    """Apply an event to the session as it is now."""
    change = transition(await session.head() or SessionHead(), event, now)
    assert await session.write(change)
    return change.after


async def begin(session: SessionManager, number: int) -> SessionHead:
    return await apply(session, Begin(turn(number, session)))


async def end(session: SessionManager, number: int) -> SessionHead:
    return await apply(session, End("run", reply(number, session=session)))


async def converse(session: SessionManager, numbers: Iterable[int]) -> None:
    for number in numbers:
        await begin(session, number)
        await end(session, number)


async def answered_again(session: SessionManager, number: int, *, branch: int = 1) -> SessionHead:
    """Answer a stored message once more."""
    await apply(session, Begin(again(number, session, branch=branch)))
    return await apply(session, End("run", reply_again(number, session, branch=branch)))


async def tip(session: SessionManager) -> Place:
    """The end of the path that is shown."""
    head = await session.head()
    return head.tip if head is not None else Place()


async def path_ids(session: SessionManager) -> list[str]:
    """What clients call the messages of the active path that are stored."""
    return [message.id for message in await session.path(await tip(session))]


def summary(first: int, last: int, branch: int = 0) -> RollingSummary:
    return RollingSummary(f"{first}-{last}", 3, first, last, branch)
