"""ASGI apps as Lambda handlers, on the process's one event loop.

Mangum parses the events: payload format 2.0 of Function URLs, and 1.0 of API Gateway's REST APIs. `buffered_handler`
also uses its response; `StreamingHandler` sends the body while the app produces it. Neither runs ASGI's lifespan: an
app opens its connections on first use and keeps them. Work after a response belongs in ASGI middleware, because an
invocation ends only when the app call has returned.
"""

import asyncio
import logging
import os
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypedDict
from urllib.parse import parse_qs

from mangum.adapter import DEFAULT_TEXT_MIME_TYPES
from mangum.exceptions import UnexpectedMessage
from mangum.handlers import APIGateway, HTTPGateway
from mangum.protocols import HTTPCycle
from mangum.types import ASGI, LambdaConfig, LambdaContext, LambdaEvent, Message, Response

from omniagent.aws.invocation_end import ends_within
from omniagent.lambda_runtime import event_loop, snapshots  # noqa: F401 - the import registers SnapStart's hooks

# Lambda frames the body itself. A content-length would be wrong, because a newline replaces an empty body.
_FRAMING = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})


class ResponseHead(TypedDict):
    """The prelude of an http-integration-response."""

    statusCode: int
    headers: dict[str, str]
    cookies: list[str]


class BodyWriter(Protocol):
    """The sink of a response body. If the connection breaks, it discards all data and does not fail."""

    async def write(self, data: bytes) -> None:
        """Send non-empty data. Waits while the reader is slow (backpressure).

        Raises ConnectionError if the platform reports that the reader has left, as ASGI's `send` does.
        """

    def end(self) -> None:
        """Complete the body."""


@dataclass(frozen=True, slots=True)
class StreamingResult:
    """A response that has begun. `stream` writes the rest of the body and returns when all work for it is done."""

    head: ResponseHead
    beginning: bytes
    """The first bytes of the body, sent with the head. Empty only if there is no body."""
    stream: Callable[[BodyWriter], Awaitable[None]]


def cannot_stream() -> bool:
    """Whether the process runs under `sam local`, whose emulator accepts only buffered responses."""
    return "AWS_SAM_LOCAL" in os.environ


def response_head(response: Mapping[str, Any]) -> ResponseHead:
    """Return the head of a payload 2.0 or 1.0 response. 1.0 has repeated headers, and cookies, in lists."""
    repeated: dict[str, list[str]] = response.get("multiValueHeaders") or {}
    headers: dict[str, str] = {
        **(response.get("headers") or {}),
        **{name: ",".join(repeated[name]) for name in repeated},
    }
    cookie = headers.pop("set-cookie", None)
    cookies = response.get("cookies") or repeated.get("set-cookie") or ([cookie] if cookie else [])
    return {
        "statusCode": response["statusCode"],
        "headers": {name: value for name, value in headers.items() if name.lower() not in _FRAMING},
        "cookies": cookies,
    }


def as_stream(response: Mapping[str, Any]) -> StreamingResult:
    """Return a payload 2.0 or 1.0 response as a stream of one chunk."""
    text: str = response.get("body") or ""
    body = b64decode(text) if response.get("isBase64Encoded") else text.encode()

    async def stream(writer: BodyWriter) -> None:
        writer.end()

    return StreamingResult(response_head(response), body, stream)


logger = logging.getLogger(__name__)

# Raised by Mangum when a field of the event is not text, not a number or not base64.
_UNREADABLE: Final = (AttributeError, KeyError, TypeError, ValueError)

BufferedHandler = Callable[[LambdaEvent, LambdaContext], dict[str, Any]]


_CONFIG: Final[LambdaConfig] = {
    "api_gateway_base_path": "/",
    "text_mime_types": [*DEFAULT_TEXT_MIME_TYPES, "application/problem+json"],
    "exclude_headers": [],
}


def _gateway(event: LambdaEvent, context: LambdaContext) -> HTTPGateway | APIGateway:
    """Return the reader of an event. Only API Gateway's REST events have no version."""
    event = _without_nulls(event)
    for reader in (HTTPGateway, APIGateway):
        if reader.infer(event, context, _CONFIG):
            return reader(event, context, _CONFIG)
    raise ValueError("This function serves HTTP: the event must have payload format 2.0 or 1.0")


def buffered_handler(app: ASGI) -> BufferedHandler:
    """Serve `app` with buffered responses."""

    def handler(event: LambdaEvent, context: LambdaContext) -> dict[str, Any]:
        gateway = _gateway(event, context)
        with ends_within(_seconds_left(context)):
            return _refusal(gateway, context) or _buffered(app, gateway)

    return handler


class StreamingHandler:
    """Serves `app` with streamed responses.

    It returns when the body has begun, so that an earlier failure is an ordinary function error. Under `sam local`, and
    with `?stream=false`, the response is buffered.
    """

    def __init__(self, app: ASGI) -> None:
        self._app = app

    def __call__(self, event: LambdaEvent, context: LambdaContext) -> StreamingResult | dict[str, Any]:
        gateway = _gateway(event, context)
        if refusal := _refusal(gateway, context):
            return refusal
        with ends_within(_seconds_left(context)):
            if cannot_stream() or _wants_buffered(gateway):
                return _buffered(self._app, gateway)
            return event_loop.run(_begin(self._app, gateway))

    async def respond(self, event: LambdaEvent, context: LambdaContext) -> StreamingResult:
        """Serve one of several events on the event loop that is running."""
        gateway = _gateway(event, context)
        if refusal := _refusal(gateway, context):
            return as_stream(refusal)
        with ends_within(_seconds_left(context)):
            return await _begin(self._app, gateway)


def _buffered(app: ASGI, gateway: HTTPGateway | APIGateway) -> dict[str, Any]:
    event_loop.get_loop()  # makes it the current loop, on which Mangum runs the app
    response: dict[str, Any] = gateway(HTTPCycle(gateway.scope, gateway.body)(app))
    return response


def _seconds_left(context: LambdaContext) -> float:
    """Return how long Lambda lets this invocation run."""
    return context.get_remaining_time_in_millis() / 1000


def _without_nulls(event: LambdaEvent) -> LambdaEvent:
    """Drop null fields and headers: Mangum has defaults for missing fields, but not for null."""
    present = {name: value for name, value in event.items() if value is not None}
    for field in ("headers", "multiValueHeaders"):
        if isinstance(headers := present.get(field), dict):
            present[field] = {name: value for name, value in headers.items() if value is not None}
    return present


def _refusal(gateway: HTTPGateway | APIGateway, context: LambdaContext) -> dict[str, Any] | None:
    """Return the error response if the event is not a readable request, for example if its host has two ports."""
    try:
        _ = gateway.scope, gateway.body
    except _UNREADABLE as exc:
        from omniagent.http.problems import refused_event  # rarely needed, and the app need not be ours

        reason = f"event unreadable: {type(exc).__name__}"
        return refused_event(context.aws_request_id, source_ip=_source_ip(gateway.event), reason=reason)
    return None


def _source_ip(event: LambdaEvent) -> str:
    match event:
        case {"requestContext": {"http": {"sourceIp": str(address)}} | {"identity": {"sourceIp": str(address)}}}:
            return address
    return ""


def _wants_buffered(gateway: HTTPGateway | APIGateway) -> bool:
    return parse_qs(gateway.scope["query_string"].decode()).get("stream") == ["false"]


async def _begin(app: ASGI, gateway: HTTPGateway | APIGateway) -> StreamingResult:
    return await _Exchange(app, gateway).begin()


class _Exchange:
    """One request and its response. The app runs as a task, which does not end with the response."""

    def __init__(self, app: ASGI, gateway: HTTPGateway | APIGateway) -> None:
        self._gateway = gateway
        self._head: ResponseHead | None = None
        self._beginning = b""
        self._writer: BodyWriter | None = None
        self._complete = False
        running = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = running.create_future()
        self._attached: asyncio.Future[BodyWriter] = running.create_future()
        self._disconnected = asyncio.Event()
        self._request: Message | None = {"type": "http.request", "body": gateway.body, "more_body": False}
        # Since 2.4, a server need not report a disconnect during a stream, and frameworks do not listen for one.
        scope = {**gateway.scope, "asgi": {"version": "3.0", "spec_version": "2.4"}}
        self._app = running.create_task(self._run(app, scope))

    async def begin(self) -> StreamingResult:
        """Wait for the first bytes of the body, or for its end."""
        await self._begun
        if self._head is None or (self._app.done() and not self._complete):
            await self._app
            raise RuntimeError("The ASGI app returned without a response")
        return StreamingResult(self._head, self._beginning, self._stream)

    async def _run(self, app: ASGI, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        except asyncio.CancelledError as error:  # it would end the process; an Exception ends only the response
            raise RuntimeError("The ASGI app was cancelled") from error
        finally:
            self._has_begun()

    def _has_begun(self) -> None:
        if not self._begun.done():
            self._begun.set_result(None)

    async def _receive(self) -> Message:
        """Return the request, then a disconnect when the response is complete: Lambda reports no earlier one."""
        if self._request is not None:
            message, self._request = self._request, None
            return message
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body" and self._head is not None and not self._complete:
            if body := message.get("body"):
                if self._writer is None:
                    self._beginning = body
                    self._has_begun()
                    self._writer = await self._attached
                else:
                    await self._write(self._writer, body)
            if not message.get("more_body"):
                self._completed()
        elif kind == "http.response.start" and self._head is None:
            response = Response(status=message["status"], headers=message.get("headers", []), body=b"")
            self._head = response_head(self._gateway(response))
        else:
            raise UnexpectedMessage(f"Unexpected {kind}")

    async def _write(self, writer: BodyWriter, body: bytes) -> None:
        try:
            await writer.write(body)
        except ConnectionError:
            self._completed()  # nobody reads the rest
            raise

    def _completed(self) -> None:
        self._complete = True
        self._has_begun()
        if self._writer is not None:
            self._writer.end()
        self._disconnected.set()

    async def _stream(self, writer: BodyWriter) -> None:
        if self._complete:
            writer.end()  # without a body
        else:
            self._attached.set_result(writer)
        try:
            await self._app
        except Exception:
            if not self._complete:
                raise
            # Starlette re-raises an error after it has answered with a 500.
            logger.exception("app failed after its response was complete")
        if not self._complete:
            raise RuntimeError("The ASGI app returned without completing its response")
