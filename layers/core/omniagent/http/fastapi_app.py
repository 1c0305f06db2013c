"""FastAPI, set up alike for the functions that serve HTTP."""

from typing import Annotated, Any

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.requests import Request

from omniagent import errors
from omniagent.aws.services import Services
from omniagent.http import problems
from omniagent.http.auth import Caller


async def process_services(request: Request) -> Services:
    """The services that the app was made with, as a dependency: a test overrides it."""
    services: Services = request.app.state.services
    return services


ProcessServices = Annotated[Services, Depends(process_services)]


async def current_caller(request: Request, services: ProcessServices) -> Caller:
    """Who makes the request."""
    return await services.authenticator.authenticate(request.scope)


CurrentCaller = Annotated[Caller, Depends(current_caller)]


def create_app(title: str, description: str, services: Services) -> FastAPI:
    """Make an app whose errors are problems, and whose pages at /docs can be switched off."""
    shown = services.settings.docs_enabled
    # Only for the pages, which then ask for a token: `current_caller` is who checks it.
    described = [Depends(HTTPBearer(auto_error=False))] if services.settings.auth_mode == "jwt" else []
    app = FastAPI(
        title=title,
        description=description,
        version="1",
        docs_url="/docs" if shown else None,
        redoc_url=None,
        openapi_url="/openapi.json" if shown else None,
        generate_unique_id_function=lambda route: route.name,
        dependencies=described,
        # A redirect would name the host of the request, which behind a CDN is not the one that its client called.
        redirect_slashes=False,
    )
    app.state.services = services
    problems.install(app, recover=services.recover)
    return app


EVERYWHERE: tuple[type[errors.OmniAgentError], ...] = (
    errors.Unauthenticated,
    errors.InvalidRequest,
    errors.OmniAgentError,
    errors.StorageUnavailable,
    errors.IdentityUnavailable,
)
"""What any route may answer."""

WITH_BODY: tuple[type[errors.OmniAgentError], ...] = (
    errors.MalformedRequest,
    errors.PayloadTooLarge,
    errors.UnsupportedMediaType,
)
"""What a route that takes a body may answer as well."""


def documented(*kinds: type[errors.OmniAgentError]) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of the errors of a route: the `responses` of its decorator. `EVERYWHERE` is always in it."""
    schema = {problems.MEDIA_TYPE: {"schema": problems.Problem.model_json_schema()}}
    told: dict[int | str, dict[str, Any]] = {}
    for kind in dict.fromkeys((*kinds, *EVERYWHERE)):
        known = told.setdefault(kind.status, {"description": "", "content": schema})
        known["description"] = ", ".join(filter(None, (known["description"], f"`{kind.code}`")))
    return told
