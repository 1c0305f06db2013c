"""OpenAPI documents: what FastAPI does not find in the routes. It serves the sessions app, but not the chat app."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from omniagent import errors
from omniagent.http.serving import MEDIA_TYPE, Problem
from omniagent.protocol.events import DataChunk, StreamEvent
from omniagent.settings import AuthMode

_Json = dict[str, Any]
ANY_EVENT = "StreamEvent"
_COMPONENT = "#/components/schemas/{model}"

SECURITY_SCHEMES: Mapping[AuthMode, dict[str, Any]] = {
    "jwt": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
    "iam": {
        "sigv4": {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": "A signature of AWS (Signature Version 4, service `lambda`).",
            "x-amazon-apigateway-authtype": "awsSigv4",
        }
    },
}

EVERYWHERE: tuple[type[errors.OmniAgentError], ...] = (
    errors.Unauthenticated,
    errors.Forbidden,
    errors.InvalidRequest,
    errors.OmniAgentError,
    errors.StorageUnavailable,
    errors.IdentityUnavailable,
    errors.SecretsUnavailable,
)
"""Errors of every route."""

WITH_BODY: tuple[type[errors.OmniAgentError], ...] = (
    errors.MalformedRequest,
    errors.PayloadTooLarge,
    errors.UnsupportedMediaType,
)
"""Further errors of a route that takes a body."""

PAID: tuple[type[errors.OmniAgentError], ...] = (
    errors.BudgetExceeded,
    errors.TooManyRequests,
    errors.RegistryUnavailable,
)
"""Further errors of a route that spends the user's budget."""


def described(
    *kinds: type[errors.OmniAgentError],
    takes: Sequence[type[BaseModel]] = (),
    needs_body: bool = True,
    responses: Mapping[int, _Json] | None = None,
) -> _Json:
    """Return what a route's decorator needs: these errors and those of `EVERYWHERE`, a body, further `responses`.

    The body, which `read_model` reads, may be any of the models.
    """
    content = {MEDIA_TYPE: {"schema": reference(Problem.__name__)}}
    refusals: dict[int, _Json] = {}
    for kind in dict.fromkeys((*kinds, *(WITH_BODY if takes else ()), *EVERYWHERE)):
        response = refusals.setdefault(kind.status, {"description": "", "content": content})
        response["description"] = ", ".join(filter(None, (response["description"], f"`{kind.code}`")))
    route: _Json = {"responses": {**refusals, **(responses or {})}}
    if takes:
        bodies = [reference(model.__name__) for model in takes]
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        body = {"required": needs_body, "content": {"application/json": {"schema": schema}}}
        route["openapi_extra"] = {"requestBody": body}
    return route


def reference(name: str) -> _Json:
    """Return a reference to a component."""
    return {"$ref": _COMPONENT.format(model=name)}


def component_schemas(*models: type[BaseModel]) -> _Json:
    """Return the components of these models, and of those that they are made of."""
    inputs: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in models]
    schemas: _Json = models_json_schema(inputs, ref_template=_COMPONENT)[1]["$defs"]
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


class DescribedApp(FastAPI):
    """FastAPI with components and security schemes that it does not find in the routes."""

    def __init__(self, title: str, description: str, components: Mapping[str, Any], **options: Any) -> None:
        super().__init__(
            title=title,
            description=description,
            version="1",
            redoc_url=None,
            generate_unique_id_function=lambda route: route.name,
            **options,
        )
        self._components = components

    def openapi(self) -> _Json:
        if self.openapi_schema is None:
            document = super().openapi()
            found = document.setdefault("components", {})
            found["schemas"] = {**self._components, **found.get("schemas", {})}
            schemes = SECURITY_SCHEMES.get(self.state.auth_mode, {})
            found |= {"securitySchemes": schemes} if schemes else {}
            document["security"] = [{name: []} for name in schemes]
            document.setdefault("servers", [{"url": "/", "description": "Where this document comes from"}])
            self.openapi_schema = document
        return self.openapi_schema
