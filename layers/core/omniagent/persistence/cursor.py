"""Where a page of sessions ended, as a text that a client hands back and does not read."""

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from omniagent.errors import InvalidRequest
from omniagent.persistence.documents import Session

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class SessionCursor:
    """The last session of a page: when it was used, and its id without the owner's."""

    updated_at: datetime
    session_id: str

    @classmethod
    def at(cls, session: Session) -> "SessionCursor":
        return cls(session.updated_at, session.id.partition(":")[2])

    def encode(self) -> str:
        plain = f"{(self.updated_at - _EPOCH) // _MILLISECOND}:{self.session_id}"
        return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> "SessionCursor":
        """Read what `encode` wrote. Raises `InvalidRequest` for anything else."""
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            plain = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
            milliseconds, _, session_id = plain.partition(":")
            return cls(_EPOCH + int(milliseconds) * _MILLISECOND, session_id)
        except (binascii.Error, UnicodeError, ValueError, OverflowError) as exc:
            raise InvalidRequest("before is not a cursor of this list") from exc

    def older(self, user_id: str) -> dict[str, Any]:
        """The condition for what comes after in the list. The first bound is what the index is entered by."""
        return {
            "updated_at": {"$lte": self.updated_at},
            "$or": [{"updated_at": {"$lt": self.updated_at}}, {"_id": {"$lt": f"{user_id}:{self.session_id}"}}],
        }
