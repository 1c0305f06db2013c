"""Errors as HTTP, in one place: `application/problem+json` with fixed public text. What happened is in the log.

`install(app)` gives a FastAPI app the handlers and, around everything, `Boundary`.
"""

import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omniagent.errors import (
    InvalidRequest,
    MalformedRequest,
    NotAllowed,
    NotFound,
    OmniAgentError,
    RequestError,
    Unauthenticated,
)
from omniagent.tracing import Span, flush_traces, trace_request
from omniagent.tracing.logs import bind_request_id

logger = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
MAX_TOLD_ERRORS: Final = 5
DOCS_PATHS: Final = frozenset({"/docs", "/redoc"})

_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# FastAPI's page takes Swagger UI from a CDN and starts it with a script of its own.
_DOCS_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline' https://cdn.jsdelivr.net; "
    "style-src 'unsafe-inline' https://cdn.jsdelivr.net; img-src data: https://fastapi.tiangolo.com "
    "https://cdn.jsdelivr.net; connect-src 'self'; frame-ancestors 'none'"
)


class Problem(BaseModel):
    """What went wrong, for people and for programs (RFC 9457)."""

    type: str = Field("about:blank", description="Nothing more is to be read about it elsewhere.")
    title: str = Field(description="The kind of problem.")
    status: int = Field(description="The HTTP status again.")
    detail: str = Field(description="What to do about it.")
    code: str = Field(description="The kind of problem, for programs.")
    request_id: str = Field(description="What the operator finds the cause by.")


Recover = Callable[[BaseException], Awaitable[None]]


def install(app: FastAPI, *, recover: Recover | None = None) -> None:
    """Let the app answer every error with a `Problem`. `recover` is told of those that are ours."""

    async def handle(request: Request, exc: Exception) -> Response:
        if recover is not None and isinstance(exc, OmniAgentError) and not isinstance(exc, RequestError):
            await recover(exc)
        return problem_response(exc, request_id_of(request.scope))

    for kind in (OmniAgentError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handle)
    app.add_middleware(Boundary)


class Boundary:
    """The outermost layer of an app: request id, safe headers, an answer to any error, traces sent before the end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope["omniagent.request_id"] = _request_id(scope)
        with bind_request_id(request_id):
            try:
                with trace_request(scope["method"], Headers(scope=scope)) as span:
                    await self._serve(scope, receive, send, span)
            finally:
                await flush_traces()

    async def _serve(self, scope: Scope, receive: Receive, send: Send, span: Span) -> None:
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _add_headers(MutableHeaders(scope=message), scope)
                span.set_response(message["status"], _span_name(scope))
            await send(message)

        try:
            await self._app(scope, receive, send_safely)
        except Exception as exc:
            if started:
                raise  # the status is out: whoever runs the app cuts the response off
            await problem_response(exc, request_id_of(scope))(scope, receive, send_safely)


def _span_name(scope: Scope) -> str:
    """Method and route. An unknown path is left out: anyone can make up any number of them."""
    return f"{scope['method']} {getattr(scope.get('route'), 'path', '')}".strip()


def request_id_of(scope: Mapping[str, Any]) -> str:
    """Return the id that `Boundary` gave the request."""
    request_id: str = scope["omniagent.request_id"]
    return request_id


def problem_response(exc: Exception, request_id: str) -> Response:
    """Return the response for any exception. The cause of one that is not the caller's is logged."""
    if isinstance(exc, RequestValidationError):
        error: OmniAgentError = InvalidRequest(_told(exc))
    elif isinstance(exc, HTTPException):
        return _http_exception(exc, request_id)
    elif isinstance(exc, OmniAgentError):
        error = exc
    else:
        error = OmniAgentError()
    if isinstance(error, RequestError):
        logger.info("The request was refused", extra={"code": error.code, "status": error.status})
    else:
        logger.error("The request failed", exc_info=exc, extra={"code": error.code, "status": error.status})
    problem = Problem(
        title=error.title, status=error.status, detail=error.public, code=error.code, request_id=request_id
    )
    return _respond(problem, _error_headers(error))


def refused_event(request_id: str) -> dict[str, Any]:
    """Return the response, in payload format 2.0, to an event that no app can be given."""
    response = problem_response(MalformedRequest("The request cannot be read."), request_id)
    _add_headers(response.headers, {"path": "", "omniagent.request_id": request_id})
    return {
        "statusCode": response.status_code,
        "headers": dict(response.headers),
        "body": bytes(response.body).decode(),
    }


def _http_exception(exc: HTTPException, request_id: str) -> Response:
    """The framework's own refusals: an unknown path, another method."""
    known = {404: NotFound("There is nothing at this path."), 405: NotAllowed()}.get(exc.status_code)
    phrase = HTTPStatus(exc.status_code).phrase
    title, code, detail = (
        (known.title, known.code, known.public) if known else (phrase, phrase.lower().replace(" ", "_"), phrase)
    )
    problem = Problem(title=title, status=exc.status_code, detail=detail, code=code, request_id=request_id)
    return _respond(problem, dict(exc.headers or {}))


def _respond(problem: Problem, headers: Mapping[str, str]) -> Response:
    content = problem.model_dump_json()
    return Response(content, status_code=problem.status, headers=dict(headers), media_type=MEDIA_TYPE)


def _error_headers(error: OmniAgentError) -> dict[str, str]:
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, Unauthenticated) and error.challenge:
        headers["www-authenticate"] = error.challenge
    return headers


def _told(exc: RequestValidationError) -> str:
    """Say what is wrong where, without repeating what was sent."""
    problems = [f"{'.'.join(str(key) for key in error['loc'])}: {error['msg']}" for error in exc.errors()]
    return "; ".join(problems[:MAX_TOLD_ERRORS])


def _request_id(scope: Scope) -> str:
    """Lambda's own id, which its log lines carry too."""
    return getattr(scope.get("aws.context"), "aws_request_id", None) or str(uuid.uuid4())


def _add_headers(headers: MutableHeaders, scope: Mapping[str, Any]) -> None:
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    if scope["path"] in DOCS_PATHS:
        headers["content-security-policy"] = _DOCS_POLICY
    headers["x-request-id"] = request_id_of(scope)
