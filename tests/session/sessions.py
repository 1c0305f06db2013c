"""Turns, answers and summaries for the tests of every session manager."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from omniagent.messages import Part, Status, TextPart
from omniagent.session.manager import SessionManager, SessionMessage, TurnStart
from omniagent.session.summary_store import RollingSummary
from omniagent.settings import Settings

Open = Callable[..., SessionManager]
LATER = datetime(2100, 1, 1, tzinfo=UTC)
SMALL = Settings(context_max_turns=3, summary_after_turns=3)


def text(content: str) -> list[Part]:
    return [TextPart(text=content)]


def start(number: int, turn_id: str | None = None, **changes: Any) -> TurnStart:
    begun = TurnStart(turn_id or f"answer-{number}", number, f"question-{number}", text(f"Question {number}"))
    # As planned from the turn before, where that was the last one.
    return replace(begun, **{"seen_turn_id": f"answer-{number - 1}" if number > 1 else None, **changes})


def reply(number: int, turn_id: str | None = None, status: Status = "complete", **changes: Any) -> SessionMessage:
    message = SessionMessage(turn_id or f"answer-{number}", "assistant", number, text(f"Answer {number}"), status)
    return replace(message, turn_id=turn_id or "", **changes)


async def converse(session: SessionManager, last: int, first: int = 1) -> None:
    for number in range(first, last + 1):
        await session.begin_turn(start(number))
        await session.finish_turn(reply(number))


def summary(first: int, last: int) -> RollingSummary:
    return RollingSummary(f"{first}-{last}", 3, first, last)


async def stored_ids(session: SessionManager) -> list[str]:
    state = await session.load()
    return [message.id for message in (state.question, state.answer) if message]
