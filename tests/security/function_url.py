"""The functions as their URLs serve them, in the test's process: a request becomes an event, a result a response.

Everything a caller can reach is passed through, the event's reading too; only sockets and processes are left out.
"""

import base64
import json
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx

from omniagent.lambda_runtime import event_loop
from omniagent.lambda_runtime.response import StreamingResult

Json = dict[str, Any]
Handler = Callable[[Json, Any], "StreamingResult | Json"]

SIGNER = "arn:aws:sts::123456789012:assumed-role/web-backend/web-backend"
SOURCE = "203.0.113.7"


class FunctionUrls(httpx.BaseTransport):
    """Calls the handler that is named by the host. `signed` says that Lambda has checked an AWS signature."""

    def __init__(self, handlers: dict[str, Handler], *, signed: bool) -> None:
        self._handlers = handlers
        self._signed = signed

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return invoke(self._handlers[request.url.host], url_event(request, signed=self._signed))


def invoke(handler: Handler, event: Json) -> httpx.Response:
    """Give a handler an event and return the whole response."""
    result = handler(event, context())
    if not isinstance(result, StreamingResult):
        return _response(result)
    body = Collected()
    read_stream(result, body)
    return httpx.Response(result.head["statusCode"], headers=result.head["headers"], content=b"".join(body.pieces))


def read_stream(result: StreamingResult, body: "Collected") -> None:
    """Read a streamed response to its end."""

    async def read() -> None:
        await result.stream(body)

    event_loop.run(read())


def context() -> Any:
    return SimpleNamespace(aws_request_id=str(uuid.uuid4()), get_remaining_time_in_millis=lambda: 60_000)


class Collected:
    """Takes a streamed body."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def end(self) -> None:
        """The body is complete."""


def url_event(request: httpx.Request, *, signed: bool = True) -> Json:
    """The event that Lambda makes of a request, in payload format 2.0. The body may be binary."""
    path, _, query = request.url.raw_path.decode().partition("?")
    http = {"method": request.method, "path": path, "protocol": "HTTP/1.1", "sourceIp": SOURCE, "userAgent": "test"}
    event: Json = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": {name.decode(): value.decode() for name, value in _joined(request.headers.raw).items()},
        "requestContext": {"domainName": "abc.lambda-url.us-east-1.on.aws", "http": http},
        "isBase64Encoded": False,
    }
    if signed:
        event["requestContext"]["authorizer"] = {"iam": {"userArn": SIGNER}}
    if body := request.read():
        event |= {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}
    # What Lambda hands over is JSON and nothing else.
    found: Json = json.loads(json.dumps(event))
    return found


def _joined(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        joined[name.lower()] = joined[name.lower()] + b"," + value if name.lower() in joined else value
    return joined


def _response(result: Json) -> httpx.Response:
    text = result.get("body") or ""
    body = base64.b64decode(text) if result.get("isBase64Encoded") else text.encode()
    return httpx.Response(result["statusCode"], headers=result.get("headers"), content=body)
