"""A route's errors and its body, as its OpenAPI description lists them."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from omniagent import errors
from omniagent.http.problems import MEDIA_TYPE, Problem

_COMPONENT = "#/components/schemas/{model}"

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


def documented(*kinds: type[errors.OmniAgentError]) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route with these errors and those of `EVERYWHERE`."""
    content = {MEDIA_TYPE: {"schema": reference(Problem.__name__)}}
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in dict.fromkeys((*kinds, *EVERYWHERE)):
        response = responses.setdefault(kind.status, {"description": "", "content": content})
        response["description"] = ", ".join(filter(None, (response["description"], f"`{kind.code}`")))
    return responses


def body_schema(*models: type[BaseModel], required: bool = True) -> dict[str, Any]:
    """Describe a body that `read_model` reads, as the `openapi_extra` of a route. It may be any of the models."""
    kinds = [reference(model.__name__) for model in models]
    schema = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def reference(name: str) -> dict[str, Any]:
    """Return a reference to a component."""
    return {"$ref": _COMPONENT.format(model=name)}


def component_schemas(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the components of these models, and of those that they are made of."""
    inputs: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in models]
    schemas: dict[str, Any] = models_json_schema(inputs, ref_template=_COMPONENT)[1]["$defs"]
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            field.pop("default", None)  # openapi-typescript takes a field with a default for one that is always there
    return schemas
