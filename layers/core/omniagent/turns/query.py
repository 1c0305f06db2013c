"""`Query`: a user's message on its way into a turn."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from omniagent.errors import InvalidRequest
from omniagent.messages import plain_text, steering_of
from omniagent.session.manager import SessionManager, SessionMessage, SessionState, check_id, new_id
from omniagent.settings import Busy, Settings
from omniagent.turns.lease import REGENERATE, InboxMessage

MAX_QUESTION_BYTES = 100_000
"""A larger question is not carried by its claim: every write of the claim's item is billed by its size."""


@dataclass(frozen=True, slots=True)
class Query:
    """A user's message. `message_id` is its idempotency key: the same id never makes a second turn."""

    text: str = ""
    message_id: str = ""
    regenerate: bool = False
    """Answer the latest turn again, in place. `message_id` and `text` are then those of its message."""
    replaces: str | None = None
    """With `regenerate`: the answer to replace. A retry returns the answer that replaced it."""
    busy: Busy | None = None
    """The policy while the session answers another message. None: the setting's."""

    @property
    def claim_id(self) -> str:
        """The idempotency key: equal for a retry of the same request."""
        if self.regenerate:
            return f"{REGENERATE}{self.replaces or self.message_id}"
        return self.message_id

    @property
    def aliases(self) -> frozenset[str]:
        """The ids that a client may use for the turn of a regeneration."""
        return frozenset(filter(None, (self.message_id, self.replaces))) if self.regenerate else frozenset()

    def packed(self, session: SessionManager) -> bytes:
        """Return the query and its user, compressed for the claim. Empty if it is too large."""
        asked = [session.user, session.category, self.text, self.message_id, self.regenerate, self.replaces]
        packed = zlib.compress(json.dumps(asked).encode(), 1)
        return packed if len(packed) <= MAX_QUESTION_BYTES else b""

    @property
    def known_id(self) -> str | None:
        """The id under which the session may already have this message."""
        return self.message_id or self.replaces

    def is_new(self, state: SessionState) -> bool:
        """Whether this is a message with text that the session does not have."""
        return state.earlier is None and bool(self.message_id and self.text.strip())

    def is_queued(self, inbox: Sequence[InboxMessage]) -> bool:
        """Whether the message is in the inbox. Refuses another text under its id."""
        queued = next((message for message in inbox if message.id == self.message_id), None)
        if queued is not None:
            self._check_text(queued.text)
        return queued is not None

    def check_same(self, earlier: SessionMessage) -> None:
        """Refuse another text under a known id: the answer would appear below a question it does not answer."""
        joined = [part.text for part in steering_of(earlier.parts) if part.message_id == self.message_id]
        if earlier.role == "user" or joined:
            self._check_text(joined[0] if joined else earlier.text)

    def _check_text(self, known: str) -> None:
        if self.text != known and not (self.regenerate and not self.text.strip()):  # a regeneration needs no text
            raise InvalidRequest(
                "This message id was sent before, with another text. Sent messages cannot be edited: choose a new id."
            )

    def checked(self, settings: Settings) -> "Query":
        """Return the query as it can be stored. Raises `InvalidRequest`."""
        text = plain_text(self.text)
        if not self.regenerate and not text.strip():
            raise InvalidRequest("The message is empty.")
        if len(text) > settings.max_message_chars:
            raise InvalidRequest(f"The message is longer than {settings.max_message_chars} characters.")
        if self.message_id:
            check_id(self.message_id, "message id")
        message_id = self.message_id or ("" if self.regenerate else new_id())
        if self.busy is not None and self.busy not in get_args(Busy):
            raise InvalidRequest(f"busy: must be one of {', '.join(get_args(Busy))}.")
        return Query(text, message_id, self.regenerate, self.replaces, self.busy or settings.busy)
