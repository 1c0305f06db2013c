"""The components of the OpenAPI documents, imported only when one is read: the AI SDK's `UIMessage`, which
`protocol.ui_messages` writes, and the events of a stream.
"""

from dataclasses import fields
from typing import Any, Literal

from pydantic import BaseModel, Field, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from omniagent.http.fields import reference
from omniagent.protocol.events import DataChunk, StreamEvent

_Json = dict[str, Any]
ANY_EVENT = "StreamEvent"


class ShownTextPart(BaseModel):
    type: Literal["text"]
    text: str
    state: Literal["done"] | None = None


class ShownReasoningPart(BaseModel):
    type: Literal["reasoning"]
    id: str
    text: str
    state: Literal["done"]


class ShownStepPart(BaseModel):
    """A model call begins."""

    type: Literal["step-start"]


class ShownApproval(BaseModel):
    """An approval of a tool call, asked for or decided."""

    id: str
    approved: bool | None = None
    reason: str | None = Field(None, description="Why it was approved or denied.")
    requestReason: str | None = Field(None, description="Why the call needs approval.")  # noqa: N815 - the client's name


class ShownToolPart(BaseModel):
    """A tool call: `tool-<name>`."""

    type: str = Field(pattern="^tool-")
    toolCallId: str  # noqa: N815 - the client's name
    state: Literal[
        "input-available",
        "approval-requested",
        "approval-responded",
        "output-available",
        "output-error",
        "output-denied",
    ]
    input: Any = None
    rawInput: Any = Field(None, description="What the model wrote instead of JSON.")  # noqa: N815 - the client's name
    output: Any = None
    errorText: str | None = None  # noqa: N815 - the client's name
    approval: ShownApproval | None = None


class ShownSourceUrlPart(BaseModel):
    type: Literal["source-url"]
    sourceId: str  # noqa: N815 - the client's name
    url: str
    title: str | None = None


class ShownSourceDocumentPart(BaseModel):
    type: Literal["source-document"]
    sourceId: str  # noqa: N815 - the client's name
    mediaType: str  # noqa: N815 - the client's name
    title: str
    filename: str | None = None


class ShownDataPart(BaseModel):
    """Data of a tool (`data-<name>`), and `data-steering`: a user's message that joined the answer."""

    type: str = Field(pattern="^data-")
    id: str | None = None
    data: Any


class ShownSteeringPart(BaseModel):
    """A user's message that joined the answer, with `x-ai-sdk: 7`."""

    type: Literal["steering-message"]
    id: str
    parts: list[ShownTextPart]


class ShownMessage(BaseModel):
    """A `UIMessage` of the AI SDK."""

    id: str
    role: Literal["user", "assistant"]
    parts: list[
        ShownTextPart
        | ShownReasoningPart
        | ShownStepPart
        | ShownToolPart
        | ShownSourceUrlPart
        | ShownSourceDocumentPart
        | ShownDataPart
        | ShownSteeringPart
    ]
    metadata: dict[str, Any] | None = None


def component_schemas(*models: type[BaseModel]) -> _Json:
    """Return the components of these models, and of those that they are made of."""
    inputs: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in models]
    schemas: _Json = models_json_schema(inputs, ref_template=reference("{model}")["$ref"])[1]["$defs"]
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            field.pop("default", None)  # openapi-typescript takes a field with a default for one that is always there
    return schemas


def event_schemas() -> dict[str, _Json]:
    """Return the components: one schema for each event, and `StreamEvent` for any of them."""
    kinds = {f"{kind.__name__}Event": _schema(kind) for kind in StreamEvent.__subclasses__()}
    either = {"description": "One event of a stream: the JSON of a `data:` line.", "anyOf": [*map(reference, kinds)]}
    return {**kinds, ANY_EVENT: either}


def _schema(kind: type[StreamEvent]) -> _Json:
    if kind is DataChunk:
        name: _Json = {"type": "string", "pattern": "^data-"}
        shown = {"id": {"type": "string"}, "data": {}, "transient": {"type": "boolean"}}
        return {"type": "object", "properties": {"type": name, **shown}, "required": ["type", "data"]}
    described = TypeAdapter(kind).json_schema()
    # An absent value is left out, never null.
    shown = {to_camel(name): _without_null(schema) for name, schema in described.get("properties", {}).items()}
    required = [to_camel(field.name) for field in fields(kind) if field.default is not None]
    name = {"type": "string", "const": kind.type}
    return {"type": "object", "properties": {"type": name, **shown}, "required": ["type", *required]}


def _without_null(schema: _Json) -> _Json:
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else {name: value for name, value in schema.items() if name != "default"}
