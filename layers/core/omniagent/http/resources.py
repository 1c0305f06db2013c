"""What the sessions API takes and gives."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from omniagent.persistence.catalog import Page
from omniagent.persistence.documents import Message, Session, Summary, api_values
from omniagent.protocol.ui_messages import ui_message
from omniagent.session.identity import ID_PATTERN, public_session_id

MAX_NAME_LENGTH: Final = 120
# Lambda's own limit for a response is 6 MB.
MAX_PAGE_CHARACTERS: Final = 2_000_000


# One line of text: no control characters, no line separators.
LINE_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"

Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_NAME_LENGTH, pattern=LINE_PATTERN)
]


class NewSession(BaseModel):
    """A session to make. Without an id it gets one."""

    id: str | None = Field(None, pattern=ID_PATTERN)
    name: Name | None = None


class NewName(BaseModel):
    name: Name


class _Resource(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class SessionResource(_Resource):
    """A conversation."""

    id: str
    name: str | None
    latest_turn_number: int
    answering: bool = Field(description="Whether a turn is running.")
    created_at: datetime
    updated_at: datetime = Field(description="When its last turn began or ended. Sessions are listed by it.")
    extra: dict[str, Any] = Field(default_factory=dict, description="Fields of the team's own document class.")

    @classmethod
    def of(cls, session: Session) -> "SessionResource":
        return cls(
            id=public_session_id(session.id),
            name=session.name,
            latest_turn_number=session.latest_turn_number,
            answering=session.active_turn_id is not None,
            created_at=session.created_at,
            updated_at=session.updated_at,
            extra=api_values(session),
        )


class SessionList(_Resource):
    sessions: list[SessionResource]
    before: str | None = Field(description="Asks for the next page; null on the last.")

    @classmethod
    def of(cls, page: Page[Session]) -> "SessionList":
        return cls(sessions=[SessionResource.of(session) for session in page.items], before=page.before)


class MessageList(_Resource):
    """Whole turns in the order they were said, as `useChat` takes them."""

    messages: list[dict[str, Any]] = Field(description="UIMessages of the AI SDK.")
    before: str | None = Field(description="Asks for the turns before these; null on the last page.")

    @classmethod
    def of(cls, page: Page[Message]) -> "MessageList":
        kept = _fitting(page.items)
        before = page.before if len(kept) == len(page.items) else str(kept[0].turn_number)
        return cls(messages=[_shown(message) for message in kept], before=before)


class SummaryResource(_Resource):
    """What the model is told of the turns up to the last that it covers."""

    content: str
    token_count: int
    start_turn_number: int
    end_turn_number: int
    created_at: datetime

    @classmethod
    def of(cls, summary: Summary) -> "SummaryResource":
        return cls.model_validate(summary, from_attributes=True)


class Accepted(_Resource):
    """Something that will happen soon."""

    session_id: str
    accepted: str


def _shown(message: Message) -> dict[str, Any]:
    metadata = message.metadata
    if message.role == "assistant" and not metadata:
        # A turn whose process died left none: this is what the stream that followed it ended with.
        session_id = public_session_id(message.session_id)
        metadata = {"sessionId": session_id, "turnNumber": message.turn_number, "status": message.status}
    if extra := api_values(message):
        metadata = {**metadata, "extra": extra}
    return ui_message(message.client_message_id, message.role, message.parts, metadata)


def _fitting(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the newest whole turns that fit into a response, at least one."""
    room = MAX_PAGE_CHARACTERS
    for message in reversed(messages):
        room -= len(json.dumps(_shown(message)))
        if room < 0:
            first = min(message.turn_number + 1, messages[-1].turn_number)
            return [message for message in messages if message.turn_number >= first]
    return messages
