"""The turns of all users that are not over: for the operator, without their text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from omniagent.persistence.documents import IS_DUE
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.store import ConversationStore

_TURN: Final = ("id", "state", "since", "attempt", "until")
_SHOWN: Final = ["_id", "category", "queue.id", "queue.is_stopped", *(f"turn.{name}" for name in _TURN)]


@dataclass(frozen=True, slots=True)
class LiveTurnInfo:
    """A turn that runs or waits, or a message in line."""

    session_id: str
    """The session's key, which begins with the hash of its user."""
    message_id: str
    """What a stop names: the answer's id, or that of the message in line."""
    state: Literal["running", "waiting", "queued"]
    category: str | None = None
    since: datetime | None = None
    """When its current process took it. None for a message in line."""
    attempt: int = 0
    """How many processes worked on it before."""
    until: datetime | None = None
    """When the first request of a waiting turn expires."""


async def list_live_turns(store: ConversationStore, limit: int) -> list[LiveTurnInfo]:
    """Return the turns of up to `limit` sessions, the longest due first.

    The sweep's index has them all: whatever runs, waits or is in line has a time at which the sweep looks at it.
    """
    query = {"due": IS_DUE, "erased_at": None}
    with translated():
        found = await store.sessions.find(query, _SHOWN).sort("due").limit(limit).to_list()
    return [info for session in found for info in _of_session(session)]


def _of_session(session: Mapping[str, Any]) -> Iterator[LiveTurnInfo]:
    key, category = session["_id"], session.get("category")
    if turn := session.get("turn"):
        times = {"since": turn["since"], "attempt": turn["attempt"], "until": turn["until"]}
        yield LiveTurnInfo(key, turn["id"], turn["state"], category, **times)
    for message in session.get("queue") or ():
        if not message["is_stopped"]:
            yield LiveTurnInfo(key, message["id"], "queued", category)
