"""ASGI apps as Lambda handlers, on the process's one event loop.

Mangum reads the events: payload format 2.0 of Function URLs, and 1.0 of API Gateway's REST APIs. `buffered_handler`
returns the whole response; `StreamingHandler` sends the body while the app produces it. Neither runs ASGI's lifespan:
an app opens its connections on first use and keeps them. Work after a response belongs in ASGI middleware, because an
invocation ends only when the app call has returned.
"""

import asyncio
import logging
import os
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final, Protocol, Self

from mangum.exceptions import UnexpectedMessage
from mangum.handlers import APIGateway, HTTPGateway
from mangum.types import ASGI, LambdaConfig, LambdaContext, LambdaEvent, Message, Scope

from omniagent.invocation import invocation_end
from omniagent.lambda_runtime import event_loop, snapshots  # noqa: F401 - the import registers SnapStart's hooks

logger = logging.getLogger(__name__)

# Lambda frames the body itself. A content-length would be wrong, because a newline replaces an empty body.
_FRAMING: Final = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})
# Raised by Mangum when a field of the event is not text, not a number or not base64.
_UNREADABLE: Final = (AttributeError, KeyError, TypeError, ValueError)
_CONFIG: Final[LambdaConfig] = {"api_gateway_base_path": "/", "text_mime_types": [], "exclude_headers": []}


class BodyWriter(Protocol):
    """The sink of a response body. If the connection breaks, it discards all data and does not fail."""

    async def write(self, data: bytes) -> None:
        """Send non-empty data. Waits while the reader is slow (backpressure).

        Raises ConnectionError if the platform reports that the reader has left, as ASGI's `send` does.
        """

    def end(self) -> None:
        """Complete the body."""


class StreamingHandler:
    """Serves `app` with streamed responses.

    It returns when the body has begun, so that an earlier failure is an ordinary function error. Under `sam local`,
    whose emulator cannot stream, the response is buffered.
    """

    def __init__(self, app: ASGI) -> None:
        self.app = app

    def __call__(self, event: LambdaEvent, context: LambdaContext) -> "StreamingResult | dict[str, Any]":
        if "AWS_SAM_LOCAL" in os.environ:
            return buffered_handler(self.app)(event, context)
        return event_loop.run(StreamingResult.of(self.app, event, context))


def buffered_handler(app: ASGI) -> Callable[[LambdaEvent, LambdaContext], dict[str, Any]]:
    """Serve `app` with buffered responses."""

    async def response(event: LambdaEvent, context: LambdaContext) -> dict[str, Any]:
        result, rest = await StreamingResult.of(app, event, context), _Buffer()
        await result.stream(rest)
        return _payload(result.head, result.beginning + rest, event)

    return lambda event, context: event_loop.run(response(event, context))


class _Buffer(bytearray):
    """Collects a body."""

    async def write(self, data: bytes) -> None:
        self += data

    def end(self) -> None:
        """Nothing is left to do."""


def _payload(head: dict[str, Any], body: bytes, event: LambdaEvent) -> dict[str, Any]:
    """Return a response in the event's payload format."""
    try:
        text, is_encoded = body.decode(), False
    except UnicodeDecodeError:
        text, is_encoded = b64encode(body).decode(), True
    is_version_2 = event.get("version") == "2.0"
    cookies = {"cookies": head["cookies"]} if is_version_2 else {"multiValueHeaders": {"set-cookie": head["cookies"]}}
    response = {"statusCode": head["statusCode"], "headers": head["headers"], "body": text}
    return response | {"isBase64Encoded": is_encoded} | (cookies if head["cookies"] else {})


def _read_event(app: ASGI, event: LambdaEvent, context: LambdaContext) -> tuple[ASGI, Scope, bytes]:
    """Return what serves an event, and the request: the app, or for an unreadable event one that refuses it.

    An event is unreadable if, for example, its host has two ports.
    """
    # Mangum has defaults for missing fields and headers, but not for null.
    event = {name: value for name, value in event.items() if value is not None}
    for field in ("headers", "multiValueHeaders"):
        if isinstance(headers := event.get(field), dict):
            event[field] = {name: value for name, value in headers.items() if value is not None}
    for reader in (HTTPGateway, APIGateway):  # only API Gateway's REST events have no version
        if reader.infer(event, context, _CONFIG):
            break
    else:
        raise ValueError("This function serves HTTP: the event must have payload format 2.0 or 1.0")
    gateway = reader(event, context, _CONFIG)
    try:
        # Since 2.4, a server need not report a disconnect during a stream, and frameworks do not listen for one.
        return app, {**gateway.scope, "asgi": {"version": "3.0", "spec_version": "2.4"}}, gateway.body
    except _UNREADABLE as exc:
        from omniagent.http.serving import refusal  # rarely needed, and the app need not be ours

        client = (_source_ip(event), 0)
        scope = {"type": "http", "method": "", "path": "/", "headers": [], "client": client, "aws.context": context}
        return refusal(f"event unreadable: {type(exc).__name__}"), scope, b""


def _source_ip(event: LambdaEvent) -> str:
    match event:
        case {"requestContext": {"http": {"sourceIp": str(address)}} | {"identity": {"sourceIp": str(address)}}}:
            return address
    return ""


class StreamingResult:
    """A response that has begun. The app runs as a task, which does not end with the response."""

    beginning = b""
    """The first bytes of the body, sent with the head. Empty only if there is no body."""

    def __init__(self, app: ASGI, scope: Scope, body: bytes) -> None:
        running = asyncio.get_running_loop()
        self._request: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self.head: dict[str, Any] = {}
        """The prelude of an http-integration-response."""
        self._begun, self._complete = asyncio.Event(), asyncio.Event()
        self._writer: asyncio.Future[BodyWriter] = running.create_future()
        self._app = running.create_task(app(scope, self._receive, self._send))
        self._app.add_done_callback(lambda _: self._begun.set())

    @classmethod
    async def of(cls, app: ASGI, event: LambdaEvent, context: LambdaContext) -> Self:
        """Serve an event, in a task of its own. Waits for the first bytes of the body, or for its end."""
        invocation_end.set(time.monotonic() + context.get_remaining_time_in_millis() / 1000)
        result = cls(*_read_event(app, event, context))
        await result._begun.wait()
        if result._app.done() and not result._complete.is_set():
            await result._end()
        return result

    async def stream(self, writer: BodyWriter) -> None:
        """Write the rest of the body, and return when all work for it is done."""
        if self._complete.is_set():
            writer.end()  # without a body
        else:
            self._writer.set_result(writer)
        await self._end()

    async def _receive(self) -> Message:
        """Return the request, then a disconnect when the response is complete: Lambda reports no earlier one."""
        if self._request is not None:
            message, self._request = self._request, None
            return message
        await self._complete.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start" and not self.head:
            self.head = _response_head(message)
            return
        if kind != "http.response.body" or not self.head or self._complete.is_set():
            raise UnexpectedMessage(f"Unexpected {kind}")
        if (body := message.get("body")) and not self._begun.is_set():
            self.beginning = body
            self._begun.set()
            await self._writer
        elif body:
            try:
                await (await self._writer).write(body)
            except ConnectionError:
                self._complete.set()  # nobody reads the rest
                raise
        if not message.get("more_body"):
            self._complete.set()
            self._begun.set()
            if self._writer.done():
                self._writer.result().end()

    async def _end(self) -> None:
        """Wait for the app to end. Raises if the response is not complete."""
        await asyncio.wait([self._app])
        # A cancellation would end the process; another error ends only the response.
        error = RuntimeError("The ASGI app was cancelled") if self._app.cancelled() else self._app.exception()
        if not self._complete.is_set():
            raise error or RuntimeError("The ASGI app returned without completing its response")
        if error is not None:  # Starlette raises an error again after it has answered with a 500
            logger.error("app failed after its response was complete", exc_info=error)


def _response_head(message: Message) -> dict[str, Any]:
    """Return the head of an ASGI response. Repeated headers are joined, except for cookies."""
    head: dict[str, Any] = {"statusCode": message["status"], "headers": {}, "cookies": []}
    headers = head["headers"]
    for raw_name, raw_value in message.get("headers", []):
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name == "set-cookie":
            head["cookies"].append(value)
        elif name not in _FRAMING:
            headers[name] = f"{headers[name]},{value}" if name in headers else value
    return head
