"""`Query`: a user's message on its way into a turn."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from omniagent.errors import InvalidRequest
from omniagent.messages import DataPart, Part, TextPart, plain_text
from omniagent.session.ids import check_id, new_id
from omniagent.settings import Busy, Settings

UserPart = TextPart | DataPart
"""What a user's message is made of."""


@dataclass(frozen=True, slots=True)
class Query:
    """A user's message. `message_id` is its idempotency key: on one path, the same id never makes a second turn.

    The same id with other parts is an edit: a sibling of the message, with an answer of its own.
    """

    text: str = ""
    message_id: str = ""
    regenerate: bool = False
    """Answer a message again, beside its answers. `message_id` and `text` are then those of the message."""
    replaces: str | None = None
    """With `regenerate`: the answer, or the message, to answer again. None: the latest."""
    busy: Busy | None = None
    """The policy while the session answers another message. None: the setting's."""
    parent: str | None = None
    """The id of the message that it follows. None: the latest. Empty: it begins the conversation again."""
    parts: Sequence[UserPart] = ()
    """The message as it was sent, if it is more than one text."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The client's own. It is stored and returned."""
    agent: str | None = None
    """The session's agent, in a project with several: its first message chooses. None: as the project decides."""

    @property
    def content(self) -> Sequence[UserPart]:
        """The parts of the message."""
        return self.parts or (TextPart(text=self.text),)

    def repeats(self, parts: Sequence[Part]) -> bool:
        """Whether these are its parts. A regeneration need not have any."""
        return (self.regenerate and not self.text.strip()) or list(parts) == list(self.content)

    def checked(self, settings: Settings) -> "Query":
        """Return the query as it can be stored. Raises `InvalidRequest`."""
        parts = [TextPart(text=plain_text(each.text)) if isinstance(each, TextPart) else each for each in self.content]
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        if not self.regenerate and not text.strip():
            raise InvalidRequest("The message is empty.")
        others = [part for part in parts if isinstance(part, DataPart)]
        size = len(text) + (len(_json([others, self.metadata])) if others or self.metadata else 0)
        if size > settings.max_message_chars:
            raise InvalidRequest(f"The message is longer than {settings.max_message_chars} characters.")
        if self.message_id:
            check_id(self.message_id, "message id")
        message_id = self.message_id or ("" if self.regenerate else new_id())
        if self.busy is not None and self.busy not in get_args(Busy):
            raise InvalidRequest(f"busy: must be one of {', '.join(get_args(Busy))}.")
        parts = parts if self.parts else []
        return replace(self, text=text, message_id=message_id, parts=tuple(parts), busy=self.busy or settings.busy)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, default=lambda part: part.model_dump(), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest("parts, metadata: must be JSON.") from exc
