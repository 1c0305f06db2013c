"""One class per event of the AI SDK's UI message stream, and `data-session`, our own.

Fields are named as Python names them; `to_wire` gives them the names on the wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal

from omniagent.messages import FinishReason

AbortReason = Literal["cancelled", "deadline", "shutdown", "interrupted"]


@dataclass(frozen=True, slots=True)
class StreamEvent:
    type: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Start(StreamEvent):
    type = "start"
    message_id: str
    message_metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StartStep(StreamEvent):
    type = "start-step"


@dataclass(frozen=True, slots=True)
class FinishStep(StreamEvent):
    type = "finish-step"


@dataclass(frozen=True, slots=True)
class TextStart(StreamEvent):
    type = "text-start"
    id: str


@dataclass(frozen=True, slots=True)
class TextDelta(StreamEvent):
    type = "text-delta"
    id: str
    delta: str


@dataclass(frozen=True, slots=True)
class TextEnd(StreamEvent):
    type = "text-end"
    id: str


@dataclass(frozen=True, slots=True)
class ReasoningStart(StreamEvent):
    type = "reasoning-start"
    id: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta(StreamEvent):
    type = "reasoning-delta"
    id: str
    delta: str


@dataclass(frozen=True, slots=True)
class ReasoningEnd(StreamEvent):
    type = "reasoning-end"
    id: str


@dataclass(frozen=True, slots=True)
class ToolInputStart(StreamEvent):
    type = "tool-input-start"
    tool_call_id: str
    tool_name: str


@dataclass(frozen=True, slots=True)
class ToolInputDelta(StreamEvent):
    type = "tool-input-delta"
    tool_call_id: str
    input_text_delta: str


@dataclass(frozen=True, slots=True)
class ToolInputAvailable(StreamEvent):
    type = "tool-input-available"
    tool_call_id: str
    tool_name: str
    input: Any


@dataclass(frozen=True, slots=True)
class ToolInputError(StreamEvent):
    type = "tool-input-error"
    tool_call_id: str
    tool_name: str
    input: Any
    error_text: str


@dataclass(frozen=True, slots=True)
class ToolOutputAvailable(StreamEvent):
    type = "tool-output-available"
    tool_call_id: str
    output: Any


@dataclass(frozen=True, slots=True)
class ToolOutputError(StreamEvent):
    type = "tool-output-error"
    tool_call_id: str
    error_text: str


@dataclass(frozen=True, slots=True)
class Abort(StreamEvent):
    type = "abort"
    reason: AbortReason


@dataclass(frozen=True, slots=True)
class Finish(StreamEvent):
    type = "finish"
    finish_reason: FinishReason
    message_metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DataSession(StreamEvent):
    """What was stored, for the client's `onData`. Transient: it is not part of the message."""

    type = "data-session"
    data: dict[str, Any]
    transient: bool = True


@dataclass(frozen=True, slots=True)
class DataChunk(StreamEvent):
    """What a tool sent with `emit()`: `data-<name>` on the wire. The same name and id replaces an earlier one."""

    type = "data"
    name: str
    data: Any
    id: str | None = None
    transient: bool = False


@dataclass(frozen=True, slots=True)
class Error(StreamEvent):
    """Always the last event: the client drops whatever follows it."""

    type = "error"
    error_text: str


def to_wire(event: StreamEvent) -> dict[str, Any]:
    """Return the event as the JSON object the client reads."""
    if isinstance(event, DataChunk):
        optional = {"id": event.id, "transient": event.transient or None}
        present = {name: value for name, value in optional.items() if value is not None}
        return {"type": f"{_DATA}{event.name}", "data": event.data, **present}
    return {"type": event.type} | {_camel(field.name): getattr(event, field.name) for field in fields(event)}


def from_wire(wire: Mapping[str, Any]) -> StreamEvent:
    """Return the typed event of a JSON object that `to_wire` made. Raises `ValueError` for anything else."""
    kind = wire.get("type")
    try:
        if kind in _BY_TYPE:
            event_class, names = _BY_TYPE[kind]
            return event_class(**{name: wire[wire_name] for wire_name, name in names.items()})
        if isinstance(kind, str) and kind.startswith(_DATA):
            return DataChunk(kind[len(_DATA) :], wire["data"], wire.get("id"), wire.get("transient", False))
    except KeyError as exc:
        raise ValueError(f"the event {kind!r} lacks {exc}") from exc
    raise ValueError(f"unknown event {kind!r}")


_DATA = "data-"


@cache
def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


_BY_TYPE: dict[str, tuple[type[StreamEvent], dict[str, str]]] = {
    event_class.type: (event_class, {_camel(field.name): field.name for field in fields(event_class)})
    for event_class in StreamEvent.__subclasses__()
    if event_class is not DataChunk
}
