"""Opaque cursors: where a page of a list ended."""

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from omniagent.errors import InvalidRequest
from omniagent.persistence.documents import Message, Session

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last item of a page: its time, by which the list is sorted, and its id."""

    time: datetime
    id: str

    def encode(self) -> str:
        plain = f"{(self.time - _EPOCH) // _MILLISECOND}:{self.id}"
        return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read what `encode` wrote. Raises `InvalidRequest` for anything else."""
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            plain = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
            milliseconds, _, item_id = plain.partition(":")
            return cls(_EPOCH + int(milliseconds) * _MILLISECOND, item_id)
        except (binascii.Error, UnicodeError, ValueError, OverflowError) as exc:
            raise InvalidRequest("before is not a cursor of this list") from exc


class SessionCursor(Cursor):
    """The last session of a page: when it was last used, and its id without the owner's."""

    @classmethod
    def at(cls, session: Session) -> "SessionCursor":
        return cls(session.updated_at, session.id.partition(":")[2])

    def older(self, user_id: str) -> dict[str, Any]:
        """Return the query for the items that follow. Its first bound is where MongoDB enters the index."""
        return _older("updated_at", self.time, f"{user_id}:{self.id}")


class MessageCursor(Cursor):
    """The last message of a page."""

    @classmethod
    def at(cls, message: Message) -> "MessageCursor":
        return cls(message.created_at, message.id)

    def older(self) -> dict[str, Any]:
        """Return the query for the items that follow."""
        return _older("created_at", self.time, self.id)


def _older(field: str, time: datetime, item_id: str) -> dict[str, Any]:
    return {field: {"$lte": time}, "$or": [{field: {"$lt": time}}, {"_id": {"$lt": item_id}}]}
