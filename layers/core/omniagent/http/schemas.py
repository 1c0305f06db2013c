"""The components of the OpenAPI documents, imported only when one is read: bodies, the AI SDK's `UIMessage`, which
`protocol.ui_messages` writes, and the events of a stream.
"""

from dataclasses import fields
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from omniagent.http.fields import reference
from omniagent.protocol.events import DataChunk, SourceDocument, SourceUrl, StreamEvent

_Json = dict[str, Any]
ANY_EVENT = "StreamEvent"
_TEXT: _Json = {"type": "string"}
_FLAG: _Json = {"type": "boolean"}
_OPEN = ("input-available", "approval-requested", "approval-responded")
_ENDED = ("output-available", "output-error", "output-denied")


def component_schemas(*models: type[BaseModel]) -> _Json:
    """Return the components of these models, and of those that they are made of."""
    inputs: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in models]
    schemas: _Json = models_json_schema(inputs, ref_template=reference("{model}")["$ref"])[1]["$defs"]
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            field.pop("default", None)  # openapi-typescript takes a field with a default for one that is always there
    return schemas


def message_schemas() -> _Json:
    """Return the components of a message: one schema for each kind of part, and `ShownMessage`."""
    texts = {"type": "array", "items": reference("ShownTextPart")}
    done = {"state": _const("done")}
    call = {"toolCallId": _TEXT, "state": {"type": "string", "enum": [*_OPEN, *_ENDED]}}
    raw = {"description": "What the model wrote instead of JSON."}
    shown = {"input": {}, "rawInput": raw, "output": {}, "errorText": _TEXT, "approval": reference("ShownApproval")}
    steering = "A user's message that joined the answer, with `x-ai-sdk: 7`."
    data = "Data of a tool (`data-<name>`), and `data-steering`: a user's message that joined the answer."
    parts = {
        "ShownTextPart": _part("text", {"text": _TEXT}, done),
        "ShownReasoningPart": _part("reasoning", {"id": _TEXT, "text": _TEXT, **done}),
        "ShownStepPart": _part("step-start", {}, about="A model call begins."),
        "ShownToolPart": _part("^tool-", call, shown, about="A tool call: `tool-<name>`."),
        "ShownSourceUrlPart": _event(SourceUrl),
        "ShownSourceDocumentPart": _event(SourceDocument),
        "ShownDataPart": _part("^data-", {"data": {}}, {"id": _TEXT}, about=data),
        "ShownSteeringPart": _part("steering-message", {"id": _TEXT, "parts": texts}, about=steering),
    }
    decided = {"approved": _FLAG, "reason": _TEXT | {"description": "Why it was approved or denied."}}
    asked = {"requestReason": _TEXT | {"description": "Why the call needs approval."}}
    approval = _object({"id": _TEXT}, decided | asked, "An approval of a tool call, asked for or decided.")
    listed = {"type": "array", "items": {"anyOf": [*map(reference, parts)]}}
    message = {"id": _TEXT, "role": {"type": "string", "enum": ["user", "assistant"]}, "parts": listed}
    metadata = {"metadata": {"type": "object", "additionalProperties": True}}
    shown_message = _object(message, metadata, "A `UIMessage` of the AI SDK.")
    return {**parts, "ShownApproval": approval, "ShownMessage": shown_message}


def event_schemas() -> _Json:
    """Return the components: one schema for each event, and `StreamEvent` for any of them."""
    kinds = {f"{kind.__name__}Event": _event(kind) for kind in StreamEvent.__subclasses__()}
    either = {"description": "One event of a stream: the JSON of a `data:` line.", "anyOf": [*map(reference, kinds)]}
    return {**kinds, ANY_EVENT: either}


def _event(kind: type[StreamEvent]) -> _Json:
    if kind is DataChunk:
        return _part("^data-", {"data": {}}, {"id": _TEXT, "transient": _FLAG})
    described = TypeAdapter(kind).json_schema().get("properties", {})
    shown = {to_camel(name): _without_null(schema) for name, schema in described.items()}
    names = [to_camel(field.name) for field in fields(kind) if field.default is not None]
    return _part(kind.type, {name: shown.pop(name) for name in names}, shown)


def _without_null(schema: _Json) -> _Json:
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else {name: value for name, value in schema.items() if name != "default"}


def _part(kind: str, required: _Json, optional: _Json | None = None, *, about: str = "") -> _Json:
    """Return the schema of a part or event of this type, or of the types that a pattern matches."""
    name = _TEXT | {"pattern": kind} if kind.startswith("^") else _const(kind)
    return _object({"type": name, **required}, optional or {}, about)


def _object(required: _Json, optional: _Json, about: str = "") -> _Json:
    """Return the schema of an object. An absent value is left out, never null."""
    described = {"description": about} if about else {}
    return {"type": "object", **described, "properties": required | optional, "required": [*required]}


def _const(value: str) -> _Json:
    return _TEXT | {"const": value}
