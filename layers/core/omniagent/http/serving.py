"""What both apps have: errors as HTTP, in one place, safe headers, callers, and CORS behind API Gateway.

An error is `application/problem+json` with fixed public text. The cause is in the log. A Function URL handles CORS
itself. API Gateway leaves it to the function.
"""

import logging
import math
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NoReturn

from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omniagent import errors
from omniagent.http.auth import Authenticate, authenticator
from omniagent.tracing import bind_context, flush_traces, trace_request

if TYPE_CHECKING:
    from omniagent.app.application import Application

logger = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
# An IPv6 address with a zone is shorter.
_MAX_ADDRESS_LENGTH: Final = 64

_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# FastAPI's page loads Swagger UI from a CDN and starts it with an inline script.
_DOCS_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline' https://cdn.jsdelivr.net; "
    "style-src 'unsafe-inline' https://cdn.jsdelivr.net; img-src data: https://fastapi.tiangolo.com "
    "https://cdn.jsdelivr.net; connect-src 'self'; frame-ancestors 'none'"
)
# As template.yaml has them for the Function URLs.
ALLOWED_METHODS: Final = ("DELETE", "GET", "PATCH", "POST", "PUT")
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


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str = Field("about:blank", description="Always about:blank.")
    title: str = Field(description="A short name of the error, for people.")
    status: int = Field(description="The HTTP status code.")
    detail: str = Field(description="What went wrong and what the caller can do.")
    code: str = Field(description="A stable identifier of the error, for programs.")
    request_id: str = Field(description="Identifies the request in the operator's logs.")
    reset_at: datetime | None = Field(None, description="When the budget resets. Only with a 429 for a budget.")


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


class Boundary:
    """The outermost middleware: request id, trace, safe headers, and a problem response for every error.

    `recover` is called with each error that is not the caller's. Traces are flushed before the invocation ends.
    """

    def __init__(self, app: ASGIApp, *, recover: Callable[[BaseException], Awaitable[None]] | None = None) -> None:
        self._app = app
        self._recover = recover

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # A Function URL ends in a slash: `${url}/chat` arrives as `//chat`.
        scope["path"] = "/" + scope["path"].lstrip("/")
        # Lambda's own id, which its log lines carry as well.
        request_id = getattr(scope.get("aws.context"), "aws_request_id", None) or str(uuid.uuid4())
        # The address that Lambda, or the server, saw. Behind a CDN it is the CDN's.
        source_ip = str((scope.get("client") or ("",))[0] or "")[:_MAX_ADDRESS_LENGTH]
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if headers.get("content-type", "").startswith("text/html"):  # only the pages of the documents are
                    headers["content-security-policy"] = _DOCS_POLICY
                headers["x-request-id"] = request_id
                # Method and route. Unknown paths are left out: their number is unbounded.
                route = getattr(scope.get("route"), "path", "")
                span.set_response(message["status"], f"{scope['method']} {route}".strip())
            await send(message)

        with bind_context(request_id=request_id, source_ip=source_ip):
            try:
                with trace_request(scope["method"], Headers(scope=scope)) as span:
                    try:
                        await self._app(scope, receive, send_safely)
                    except Exception as exc:
                        if started:
                            raise  # the status line was sent: the runtime aborts the response
                        await self._recover_from(exc)
                        if isinstance(exc, HTTPException) and exc.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
                            exc.headers = {"allow": _allowed(scope)}
                        await problem_response(exc, request_id)(scope, receive, send_safely)
            finally:
                await flush_traces()

    async def _recover_from(self, exc: Exception) -> None:
        if self._recover is None or not isinstance(exc, errors.OmniAgentError) or isinstance(exc, errors.RequestError):
            return
        try:
            await self._recover(exc)
        except Exception:
            logger.exception("recovery failed")


async def raise_again(_: object, exc: Exception) -> NoReturn:
    """An exception handler that leaves a framework's own errors to `Boundary`."""
    raise exc


def _allowed(scope: Scope) -> str:
    """Return the methods that a path has. The framework names only those of the first route that matches.

    Each method is tried: an included router has routes, but no methods of its own.
    """
    routes = [route for route in scope["app"].routes if not isinstance(route, Mount)]

    def takes(method: str, route: BaseRoute) -> bool:
        methods = getattr(route, "methods", None) or ALLOWED_METHODS
        return method in methods and route.matches({**scope, "method": method})[0] is Match.FULL

    return ", ".join(method for method in ALLOWED_METHODS if any(takes(method, route) for route in routes))


def problem_response(exc: Exception, request_id: str) -> Response:
    """Return the response for any exception. The cause of an error that is not the caller's is logged."""
    error = _ours(exc)
    fields = {"code": error.code, "status": error.status}
    if isinstance(error, errors.RequestError):
        logger.info("request refused", extra={**fields, "reason": error.reason or error.code})
    else:
        logger.error("request failed", exc_info=exc, extra=fields)
    problem = Problem(
        title=error.title,
        status=error.status,
        detail=error.public,
        code=error.code,
        request_id=request_id,
        reset_at=error.reset_at if isinstance(error, errors.BudgetExceeded) else None,
    )
    headers = dict(getattr(exc, "headers", None) or {})
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, errors.Unauthenticated) and error.challenge:
        headers["www-authenticate"] = error.challenge
    return Response(problem.model_dump_json(exclude_none=True), problem.status, headers, MEDIA_TYPE)


def refusal(reason: str) -> Boundary:
    """Return an app that answers whatever cannot be read as an HTTP request. The reason is logged."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - ASGI's signature
        raise errors.MalformedRequest("The request cannot be read.", reason=reason)

    return Boundary(refuse)


def _ours(exc: Exception) -> errors.OmniAgentError:
    """Return an error of ours for any exception. A framework's own: unknown path, wrong method, any status of HTTP."""
    if isinstance(exc, errors.OmniAgentError):
        return exc
    if not isinstance(exc, HTTPException):
        return errors.OmniAgentError()
    if exc.status_code == HTTPStatus.NOT_FOUND:
        return errors.NotFound("There is no such path.")
    if exc.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return errors.NotAllowed()
    phrase = HTTPStatus(exc.status_code).phrase
    fields = {"status": exc.status_code, "code": phrase.lower().replace(" ", "_")}
    error: errors.RequestError = type("FrameworkError", (errors.RequestError,), fields)(phrase)
    return error
