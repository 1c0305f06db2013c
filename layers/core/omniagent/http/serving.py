"""What both apps have: the application, its callers, problem responses, and CORS behind API Gateway.

A Function URL handles CORS itself. API Gateway leaves it to the function.
"""

from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from omniagent.http.auth import Authenticate, authenticator
from omniagent.http.problems import Boundary, raise_again

if TYPE_CHECKING:
    from omniagent.app.application import Application

# As template.yaml has them for the Function URLs.
ALLOWED_METHODS: Final = ("GET", "POST", "PATCH", "PUT", "DELETE")
ALLOWED_HEADERS: Final = (
    "authorization",
    "content-type",
    "last-event-id",
    "traceparent",
    "tracestate",
    "user-agent",  # AI SDK 5.0.43 until March 2026 sets it; Safari and Firefox then ask for it
    "x-ai-sdk",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-security-token",
)
EXPOSED_HEADERS: Final = (
    "retry-after",
    "x-session-id",
    "x-vercel-ai-ui-message-stream",
    "x-workflow-run-id",
    "x-workflow-stream-tail-index",
)
MAX_AGE_SECONDS: Final = 600


def serve(app: Starlette, application: "Application", authenticate: Authenticate | None) -> None:
    """Let an app serve an application. `authenticate` finds its callers; None: as the setting AUTH_MODE says."""
    settings = application.settings
    app.router.redirect_slashes = False  # behind a CDN, a redirect would not name the host that the client called
    app.state.application = application
    # Of a server's own authentication, documents and logs know nothing.
    app.state.auth_mode = settings.auth_mode if authenticate is None else "none"
    app.state.authenticate = authenticate or authenticator(settings, local=application.local)
    app.add_exception_handler(HTTPException, raise_again)
    app.add_middleware(Boundary, recover=application.recover)
    if settings.cors_origins:
        from starlette.middleware.cors import CORSMiddleware

        # Added last, and so outermost: pages must be able to read problem responses, too.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[origin.strip() for origin in settings.cors_origins.split(",")],
            allow_methods=ALLOWED_METHODS,
            allow_headers=ALLOWED_HEADERS,
            expose_headers=EXPOSED_HEADERS,
            max_age=MAX_AGE_SECONDS,
        )
