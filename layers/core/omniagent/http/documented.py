"""A route's errors and its body, as its OpenAPI description lists them."""

from typing import Any

from pydantic import BaseModel

from omniagent import errors
from omniagent.http.problems import MEDIA_TYPE, Problem

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
    content = {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in dict.fromkeys((*kinds, *EVERYWHERE)):
        response = responses.setdefault(kind.status, {"description": "", "content": content})
        response["description"] = ", ".join(filter(None, (response["description"], f"`{kind.code}`")))
    return responses


def body_schema(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Describe a body that `read_model` reads, as the `openapi_extra` of a route."""
    content = {"application/json": {"schema": inlined(model.model_json_schema())}}
    return {"requestBody": {"required": required, "content": content}}


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Inline a schema's definitions: its own references do not resolve inside an OpenAPI document."""
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return resolve(definitions[node["$ref"].rpartition("/")[2]])
        return {name: resolve(item) for name, item in node.items()}

    found: dict[str, Any] = resolve(schema)
    return found
