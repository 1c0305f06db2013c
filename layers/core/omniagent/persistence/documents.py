"""The documents: fields and indexes, nothing else. Queries live in `store.py`.

A session's `_id` is `<user id>:<the id the client chose>`, and messages and summaries carry it. Whose session it is
stands in every key, so no query can reach another user's, and two users may choose the same id.
"""

from datetime import UTC, datetime
from typing import Any, ClassVar

from beanie import Document
from pydantic import Field
from pymongo import ASCENDING, DESCENDING, IndexModel

from omniagent.messages import Part, Role, Status


def now() -> datetime:
    """The current time as MongoDB keeps it: in UTC, to the millisecond."""
    time = datetime.now(UTC)
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


class User(Document):
    """A caller. `_id` is derived from `client_id`, so it is known before anything is read."""

    id: str  # type: ignore[assignment]  # Beanie lets a document choose its own id type
    client_id: str
    category: str | None = None
    created_at: datetime = Field(default_factory=now)

    class Settings:
        name = "users"
        indexes: ClassVar = [IndexModel([("client_id", ASCENDING)], unique=True)]


class Session(Document):
    """A conversation. `active_turn_id` is set while a turn runs and fences what that turn may write."""

    id: str  # type: ignore[assignment]  # Beanie lets a document choose its own id type
    user_id: str
    name: str | None = None
    latest_turn_number: int = 0
    active_turn_id: str | None = None
    created_at: datetime = Field(default_factory=now)
    updated_at: datetime = Field(default_factory=now)

    class Settings:
        name = "sessions"
        indexes: ClassVar = [
            IndexModel([("user_id", ASCENDING), ("updated_at", DESCENDING), ("_id", DESCENDING)]),
            # Only running sessions are in it: it stays as small as the number of turns running right now.
            IndexModel(
                [("user_id", ASCENDING), ("updated_at", DESCENDING)],
                name="running",
                partialFilterExpression={"active_turn_id": {"$type": "string"}},
            ),
        ]


class Message(Document):
    """One message. `client_message_id` is the id the client knows it by: its own, or the turn's for an answer."""

    session_id: str
    turn_number: int
    role: Role
    parts: list[Part]
    status: Status = "complete"
    client_message_id: str
    metadata: dict[str, Any] = Field(default_factory=dict)
    usage: dict[str, int] = Field(default_factory=dict)
    previous_summary_id: str | None = None
    created_at: datetime = Field(default_factory=now)

    class Settings:
        name = "messages"
        indexes: ClassVar = [
            IndexModel([("session_id", ASCENDING), ("turn_number", DESCENDING), ("role", ASCENDING)], unique=True),
            IndexModel([("session_id", ASCENDING), ("client_message_id", ASCENDING)], unique=True),
        ]


class Summary(Document):
    """What happened in the turns `start_turn_number` to `end_turn_number` and all before.

    Both ends are unique in a session: two racing summaries can leave neither a gap nor an overlap.
    """

    session_id: str
    content: str
    token_count: int
    start_turn_number: int
    end_turn_number: int
    created_at: datetime = Field(default_factory=now)

    class Settings:
        name = "summaries"
        indexes: ClassVar = [
            IndexModel([("session_id", ASCENDING), ("end_turn_number", DESCENDING)], unique=True),
            IndexModel([("session_id", ASCENDING), ("start_turn_number", ASCENDING)], unique=True),
        ]
