"""The events of a stream as JSON schemas, for the OpenAPI document."""

from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter
from pydantic.alias_generators import to_camel

from omniagent.http.documented import reference
from omniagent.protocol.events import DataChunk, StreamEvent

_Json = dict[str, Any]
ANY_EVENT = "StreamEvent"


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
