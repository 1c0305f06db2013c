"""FastAPI with our services, authentication and problem responses."""

from typing import Annotated, NoReturn

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import Request

from omniagent.aws.services import Services
from omniagent.errors import InvalidRequest
from omniagent.http.auth import Caller, lazy_authenticator
from omniagent.http.json_body import MAX_LISTED_ERRORS
from omniagent.http.problems import Boundary, Recover, raise_again
from omniagent.settings import Settings


async def process_services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def current_caller(request: Request) -> Caller:
    """Authenticate the request."""
    caller: Caller = await request.app.state.authenticate(request.scope)
    return caller


ProcessServices = Annotated[Services, Depends(process_services)]
CurrentCaller = Annotated[Caller, Depends(current_caller)]


def create_app(title: str, description: str, services: Services) -> FastAPI:
    """Return an app whose routes can depend on `ProcessServices` and `CurrentCaller`."""
    app = bare_app(title, description, services.settings)
    app.state.services = services
    app.state.authenticate = lazy_authenticator(services.settings, local=services.local)
    install_problems(app, recover=services.recover)
    if origins := services.settings.cors_origins:
        from omniagent.http.cors import add_cors  # only behind API Gateway

        add_cors(app, origins)  # added last, and so outermost: pages must be able to read problem responses, too
    return app


def bare_app(title: str, description: str, settings: Settings) -> FastAPI:
    """Return an app with pages at /docs and /openapi.json, unless the settings switch them off."""
    # Only makes the pages ask for a token; `current_caller` checks it.
    described = [Depends(HTTPBearer(auto_error=False))] if settings.auth_mode == "jwt" else []
    return FastAPI(
        title=title,
        description=description,
        version="1",
        docs_url="/docs" if settings.docs_enabled else None,
        redoc_url=None,
        openapi_url="/openapi.json" if settings.docs_enabled else None,
        generate_unique_id_function=lambda route: route.name,
        dependencies=described,
        # A redirect would contain the request's host, which behind a CDN is not the one that the client called.
        redirect_slashes=False,
    )


def install_problems(app: FastAPI, *, recover: Recover | None = None) -> None:
    """Answer every error of the app with a problem response."""
    app.add_exception_handler(HTTPException, raise_again)
    app.add_exception_handler(RequestValidationError, _raise_invalid)
    app.add_middleware(Boundary, recover=recover)


async def _raise_invalid(_: Request, exc: Exception) -> NoReturn:
    """Describe what is wrong and where, without repeating the input."""
    found = exc.errors() if isinstance(exc, RequestValidationError) else []
    texts = [f"{'.'.join(str(key) for key in error['loc'])}: {error['msg']}" for error in found]
    raise InvalidRequest("; ".join(texts[:MAX_LISTED_ERRORS])) from None
