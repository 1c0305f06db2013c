"""A request to a Function URL as the event that the function gets: payload format 2.0."""

import base64
import time
import uuid
from typing import Any
from urllib.parse import parse_qsl

from local.cloudformation import ACCOUNT
from local.emulator.http import Exchange
from local.emulator.identity import Identity

TEXT_TYPES = ("text/", "application/json", "application/javascript", "application/xml")


def url_event(exchange: Exchange, body: bytes, identity: Identity | None) -> dict[str, Any]:
    """Describe a request. Keys that AWS leaves out when they are empty are left out."""
    path, _, query = exchange.target.partition("?")
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": _headers(exchange),
        "requestContext": _request_context(exchange, path, identity),
        "isBase64Encoded": False,
    }
    if cookies := exchange.header("cookie"):
        event["cookies"] = [cookie.strip() for cookie in cookies.split(";")]
    if query:
        event["queryStringParameters"] = _parameters(query)
    if body:
        event.update(_body(exchange, body))
    return event


def _headers(exchange: Exchange) -> dict[str, str]:
    names = dict.fromkeys(name for name, _ in exchange.headers if name != "cookie")
    return {name: exchange.header(name) for name in names} | {
        "x-forwarded-for": exchange.client,
        "x-forwarded-port": "443",
        "x-forwarded-proto": "https",
    }


def _request_context(exchange: Exchange, path: str, identity: Identity | None) -> dict[str, Any]:
    now = time.time()
    domain = exchange.header("host")
    context: dict[str, Any] = {
        # The owner of the function, whoever signed the request.
        "accountId": ACCOUNT if identity else "anonymous",
        "apiId": domain.partition(".")[0],
        "authentication": None,
        "domainName": domain,
        "domainPrefix": domain.partition(".")[0],
        "http": {
            "method": exchange.method,
            "path": path,
            "protocol": "HTTP/1.1",
            "sourceIp": exchange.client,
            "userAgent": exchange.header("user-agent"),
        },
        "requestId": str(uuid.uuid4()),
        "routeKey": "$default",
        "stage": "$default",
        "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now)),
        "timeEpoch": int(now * 1000),
    }
    if identity:
        context["authorizer"] = {"iam": identity.document()}
    return context


def _parameters(query: str) -> dict[str, str]:
    """Join the values of a parameter that is given more than once."""
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        parameters[name] = f"{parameters[name]},{value}" if name in parameters else value
    return parameters


def _body(exchange: Exchange, body: bytes) -> dict[str, Any]:
    if exchange.header("content-type").lower().startswith(TEXT_TYPES):
        try:
            return {"body": body.decode(), "isBase64Encoded": False}
        except UnicodeDecodeError:
            pass
    return {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}
