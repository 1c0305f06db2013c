"""OpenAPI documents: what FastAPI does not find in the routes. It serves the sessions app, but not the chat app."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Header
from pydantic import BaseModel

from omniagent import errors
from omniagent.http.fields import reference
from omniagent.http.serving import MEDIA_TYPE, Problem
from omniagent.settings import AuthMode

_Json = dict[str, Any]
_Errors = tuple[type[errors.OmniAgentError], ...]

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

EVERYWHERE: _Errors = (
    errors.Unauthenticated,
    errors.Forbidden,
    errors.InvalidRequest,
    errors.OmniAgentError,
    errors.StorageUnavailable,
    errors.IdentityUnavailable,
    errors.SecretsUnavailable,
)
"""Errors of every route."""

WITH_BODY: _Errors = (errors.MalformedRequest, errors.PayloadTooLarge, errors.UnsupportedMediaType)
"""Further errors of a route that takes a body."""

PAID: _Errors = (errors.BudgetExceeded, errors.TooManyRequests, errors.RegistryUnavailable)
"""Further errors of a route that spends the user's budget."""


SdkVersion = Annotated[
    str | None,
    Header(
        description="`7` enables what only AI SDK 7 accepts: `steering-message`, and in a stream "
        "`tool-approval-response` and `reset-step`. `5` replaces what AI SDK 5 rejects: `tool-approval-request` "
        "becomes `data-approval-request`, and `tool-output-denied` becomes an error."
    ),
]


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


class DescribedApp(FastAPI):
    """FastAPI with the components and security schemes that it does not find in the routes, such as `bodies`."""

    def __init__(self, title: str, description: str, bodies: Sequence[type[BaseModel]], **options: Any) -> None:
        super().__init__(
            title=title,
            description=description,
            version="1",
            redoc_url=None,
            generate_unique_id_function=lambda route: route.name,
            **options,
        )
        self._bodies = bodies

    def openapi(self) -> _Json:
        if self.openapi_schema is None:
            from omniagent.http.schemas import component_schemas, message_schemas  # only when a document is read

            document = super().openapi()
            found = document.setdefault("components", {})
            components = component_schemas(Problem, *self._bodies) | message_schemas()
            found["schemas"] = {**components, **found.get("schemas", {})}
            schemes = SECURITY_SCHEMES.get(self.state.auth_mode, {})
            found |= {"securitySchemes": schemes} if schemes else {}
            document["security"] = [{name: []} for name in schemes]
            document.setdefault("servers", [{"url": "/", "description": "Where this document comes from"}])
            self.openapi_schema = document
        return self.openapi_schema
