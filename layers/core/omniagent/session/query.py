"""`Query`: a user's message on its way into a turn."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from omniagent.errors import ConfigurationError, InvalidRequest
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

    @staticmethod
    def checked(query: "str | Query", busy: Busy | None, settings: Settings) -> "Query":
        """Return a message as it can be stored, with its policy. Raises `InvalidRequest`."""
        message = Query(query) if isinstance(query, str) else query
        if not isinstance(message, Query) or not isinstance(message.text, str):
            raise ConfigurationError(f"the query is {query!r:.100}: write text, or Query(text, message_id=…)")
        busy = busy if busy is not None else message.busy
        parts = [
            TextPart(text=plain_text(each.text)) if isinstance(each, TextPart) else DataPart(**_as_json(dict(each)))
            for each in message.content
        ]
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        if not message.regenerate and not text.strip():
            raise InvalidRequest("The message is empty.")
        others = [dict(part) for part in parts if isinstance(part, DataPart)]
        metadata = _as_json(dict(message.metadata)) if message.metadata else {}
        size = len(text) + (len(json.dumps([others, metadata])) if others or metadata else 0)
        if size > settings.max_message_chars:
            raise InvalidRequest(f"The message is longer than {settings.max_message_chars} characters.")
        if message.message_id:
            check_id(message.message_id, "message id")
        message_id = message.message_id or ("" if message.regenerate else new_id())
        if busy is not None and busy not in get_args(Busy):
            raise InvalidRequest(f"busy: must be one of {', '.join(get_args(Busy))}.")
        message = replace(message, text=text, message_id=message_id, busy=busy or settings.busy)
        return replace(message, parts=tuple(parts) if message.parts else (), metadata=metadata)


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    """Return what a client sent beside text as it gets it back: JSON, without half surrogate pairs, as text is."""
    try:
        plain: dict[str, Any] = json.loads(plain_text(json.dumps(value, ensure_ascii=False, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest("parts, metadata: must be JSON.") from exc
    return plain
