"""One class per event of the AI SDK's UI message stream, and `data-session`, our own.

Fields have Python names; `sse` converts them to the names on the wire.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, dataclass_transform

from omniagent.messages import FinishReason, SourcePart

AbortReason = Literal["cancelled", "deadline", "shutdown", "interrupted", "unanswered", "expired"]


@dataclass_transform(frozen_default=True)
class Value:
    """The base class of events, records and decisions: each class below it is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class StreamEvent(Value):
    """The base class of all events of the stream. `type` is its name on the wire."""

    type: ClassVar[str]


class Start(StreamEvent):
    type = "start"
    message_id: str
    message_metadata: dict[str, Any]


class StartStep(StreamEvent):
    type = "start-step"


class FinishStep(StreamEvent):
    type = "finish-step"


class ResetStep(StreamEvent):
    """Drops the parts of the current step, which is sent again. Only AI SDK 7 knows it."""

    type = "reset-step"


class TextStart(StreamEvent):
    type = "text-start"
    id: str


class TextDelta(StreamEvent):
    """The next characters of the answer."""

    type = "text-delta"
    id: str
    delta: str


class TextEnd(StreamEvent):
    type = "text-end"
    id: str


class ReasoningStart(StreamEvent):
    type = "reasoning-start"
    id: str


class ReasoningDelta(StreamEvent):
    """The next characters of the model's reasoning."""

    type = "reasoning-delta"
    id: str
    delta: str


class ReasoningEnd(StreamEvent):
    type = "reasoning-end"
    id: str


class ToolInputStart(StreamEvent):
    type = "tool-input-start"
    tool_call_id: str
    tool_name: str


class ToolInputDelta(StreamEvent):
    type = "tool-input-delta"
    tool_call_id: str
    input_text_delta: str


class ToolInputAvailable(StreamEvent):
    """A tool call with its complete, valid arguments."""

    type = "tool-input-available"
    tool_call_id: str
    tool_name: str
    input: Any


class ToolInputError(StreamEvent):
    type = "tool-input-error"
    tool_call_id: str
    tool_name: str
    input: Any
    error_text: str


class ToolApprovalRequest(StreamEvent):
    """The call waits until somebody approves or denies it."""

    type = "tool-approval-request"
    approval_id: str
    tool_call_id: str
    reason: str | None = None
    approved: bool | None = None
    """How it was decided, in a replay. None: it is open."""


class ToolOutputDenied(StreamEvent):
    type = "tool-output-denied"
    tool_call_id: str


class ToolOutputAvailable(StreamEvent):
    """What a tool call returned."""

    type = "tool-output-available"
    tool_call_id: str
    output: Any


class ToolOutputError(StreamEvent):
    """A tool call failed. `error_text` is its public text."""

    type = "tool-output-error"
    tool_call_id: str
    error_text: str


class Abort(StreamEvent):
    type = "abort"
    reason: AbortReason


class Finish(StreamEvent):
    type = "finish"
    finish_reason: FinishReason
    message_metadata: dict[str, Any]


class DataSession(StreamEvent):
    """The stored result, for the client's `onData`. Transient: it is not part of the message."""

    type = "data-session"
    data: dict[str, Any]
    transient: bool = True


class SteeringData(StreamEvent):
    """A user's message that joined the answer. AI SDK 7 has its own event for it, see `ui_messages`."""

    type = "data-steering"
    id: str
    data: dict[str, Any]


class DataChunk(StreamEvent):
    """Data that a tool sent with `emit()`: `data-<name>` on the wire. It replaces data with the same name and id."""

    type = "data"
    name: str
    data: Any
    id: str | None = None
    transient: bool = False


class SourceUrl(StreamEvent):
    """A page that the answer cites."""

    type = "source-url"
    source_id: str
    url: str
    title: str | None = None


class SourceDocument(StreamEvent):
    """A document that the answer cites."""

    type = "source-document"
    source_id: str
    media_type: str
    title: str
    filename: str | None = None


def source_event(part: SourcePart) -> SourceUrl | SourceDocument:
    """Return the event of a source. A message in the AI SDK's format has the same fields."""
    if part.url is not None:
        return SourceUrl(part.source_id, part.url, part.title)
    return SourceDocument(part.source_id, part.media_type or "text/plain", part.title or "", part.filename)


class Error(StreamEvent):
    """Always the last event: the client ignores later ones."""

    type = "error"
    error_text: str
