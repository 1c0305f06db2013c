"""FastAPI with our application, authentication and problem responses."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from fastapi import Depends, FastAPI, Path
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from omniagent.app.application import Application
from omniagent.errors import InvalidRequest
from omniagent.http.auth import Authenticate, Authenticator, Caller, find_caller
from omniagent.http.problems import Boundary, Recover, raise_again
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.documents import Session
from omniagent.session.ids import ID_PATTERN, session_key, user_id_of
from omniagent.settings import AuthMode
from omniagent.validation import problems_of

if TYPE_CHECKING:
    from omniagent.ai.operator import TurnOperator


async def process_application(request: Request) -> Application:
    application: Application = request.app.state.application
    return application


ProcessApplication = Annotated[Application, Depends(process_application)]
CurrentCaller = Annotated[Caller, Depends(find_caller)]
SessionId = Annotated[str, Path(pattern=ID_PATTERN)]


async def _catalog(application: ProcessApplication) -> Catalog:
    return await application.catalog()


SessionCatalog = Annotated[Catalog, Depends(_catalog)]


async def _own_key(session_id: SessionId, caller: CurrentCaller) -> str:
    return session_key(user_id_of(caller.client_id), session_id)


OwnKey = Annotated[str, Depends(_own_key)]
"""The key of the session in the path, as one of the caller's."""


async def _own_session(key: OwnKey, catalog: SessionCatalog) -> Session:
    return await catalog.get(key)


OwnSession = Annotated[Session, Depends(_own_session)]
"""The caller's session in the path. A request for any other raises `NotFound`."""


async def _own_runner(session_id: SessionId, caller: CurrentCaller, application: ProcessApplication) -> "TurnOperator":
    return await application.runner(caller.client_id, session_id, category=caller.category)


OwnRunner = Annotated["TurnOperator", Depends(_own_runner)]
"""The runner of the caller's session in the path, which need not exist yet."""


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


class DescribedApp(FastAPI):
    """FastAPI with components and security schemes that it does not find in the routes."""

    components: Mapping[str, Any] = {}
    auth_mode: AuthMode = "none"

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            found = document.setdefault("components", {})
            found["schemas"] = {**self.components, **found.get("schemas", {})}
            schemes = SECURITY_SCHEMES.get(self.auth_mode, {})
            found |= {"securitySchemes": schemes} if schemes else {}
            document["security"] = [{name: []} for name in schemes]
            document.setdefault("servers", [{"url": "/", "description": "Where this document comes from"}])
            self.openapi_schema = document
        return self.openapi_schema


def create_app(
    title: str,
    description: str,
    application: Application,
    authenticate: Authenticate | None,
    components: Mapping[str, Any],
) -> FastAPI:
    """Return an app whose routes can depend on `ProcessApplication` and `CurrentCaller`.

    It has pages at /docs and /openapi.json, unless the settings switch them off.
    """
    settings = application.settings
    app = DescribedApp(
        title=title,
        description=description,
        version="1",
        docs_url="/docs" if settings.docs_enabled else None,
        redoc_url=None,
        openapi_url="/openapi.json" if settings.docs_enabled else None,
        generate_unique_id_function=lambda route: route.name,
        # A redirect would contain the request's host, which behind a CDN is not the one that the client called.
        redirect_slashes=False,
    )
    # Of a server's own authentication, the documents know nothing.
    app.components, app.auth_mode = components, settings.auth_mode if authenticate is None else "none"
    app.state.application = application
    app.state.authenticate = authenticate or Authenticator(settings, local=application.local).authenticate
    install_problems(app, recover=application.recover)
    if settings.cors_origins:
        from omniagent.http.cors import add_cors  # only behind API Gateway

        # Added last, and so outermost: pages must be able to read problem responses, too.
        add_cors(app, settings.cors_origins)
    return app


def install_problems(app: FastAPI, *, recover: Recover | None = None) -> None:
    """Answer every error of the app with a problem response."""
    app.add_exception_handler(HTTPException, raise_again)
    app.add_exception_handler(RequestValidationError, _raise_invalid)
    app.add_middleware(Boundary, recover=recover)


async def _raise_invalid(_: Request, exc: Any) -> NoReturn:
    raise InvalidRequest(problems_of(exc)) from None
