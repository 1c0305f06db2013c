"""`Query`: a user's message on its way into a turn."""

from dataclasses import dataclass
from typing import get_args

from omniagent.errors import InvalidRequest
from omniagent.messages import plain_text, steering_of
from omniagent.session.ids import check_id, new_id
from omniagent.session.live import SessionMessage
from omniagent.settings import Busy, Settings


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
    agent: str | None = None
    """The session's agent, in a project with several: its first message chooses. None: as the project decides."""

    @property
    def known_id(self) -> str | None:
        """The id under which the session may already have this message."""
        return self.message_id or self.replaces

    def check_same(self, earlier: SessionMessage) -> None:
        """Refuse another text than that of a stored message with this id."""
        joined = [part.text for part in steering_of(earlier.parts) if part.message_id == self.message_id]
        if earlier.role == "user" or joined:
            self.check_text(joined[0] if joined else earlier.text)

    def check_text(self, known: str) -> None:
        """Refuse another text under a known id. A regeneration needs no text."""
        if self.text != known and not (self.regenerate and not self.text.strip()):
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
        return Query(text, message_id, self.regenerate, self.replaces, self.busy or settings.busy, self.agent)
