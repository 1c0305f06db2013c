"""The errors of a route, as its OpenAPI description lists them."""

from typing import Any

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
