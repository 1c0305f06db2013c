"""Converts a request to a function's event: payload format 2.0 of Function URLs, or 1.0 of API Gateway's REST APIs."""

import base64
import time
import uuid
from typing import Any
from urllib.parse import parse_qs, parse_qsl

from local.cloudformation import ACCOUNT
from local.emulator.http import Exchange
from local.emulator.identity import Identity

TEXT_TYPES = ("text/", "application/json", "application/javascript", "application/xml")


def url_event(exchange: Exchange, body: bytes, identity: Identity | None) -> dict[str, Any]:
    """Return the event of a request to a Function URL. Keys that AWS omits when they are empty are omitted."""
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


def api_event(exchange: Exchange, body: bytes, identity: Identity | None, *, stage: str = "live") -> dict[str, Any]:
    """Return the event of a request to a REST API. It has every key; empty ones are null."""
    path, _, query = exchange.target.partition("?")
    headers: dict[str, list[str]] = {}
    for name, value in [*exchange.headers, ("X-Forwarded-For", exchange.client), ("X-Forwarded-Proto", "https")]:
        headers.setdefault(name, []).append(value)
    parameters = parse_qs(query, keep_blank_values=True)
    domain = exchange.header("host")
    return {
        "resource": "/{proxy+}",
        "path": path,
        "httpMethod": exchange.method,
        "headers": {name: values[-1] for name, values in headers.items()},
        "multiValueHeaders": headers,
        "queryStringParameters": {name: values[-1] for name, values in parameters.items()} or None,
        "multiValueQueryStringParameters": parameters or None,
        "pathParameters": {"proxy": path.removeprefix("/")},
        "stageVariables": None,
        "requestContext": {
            "accountId": ACCOUNT,
            "apiId": domain.partition(".")[0],
            "domainName": domain,
            "domainPrefix": domain.partition(".")[0],
            "httpMethod": exchange.method,
            "identity": _api_identity(exchange, identity),
            "path": f"/{stage}{path}",
            "protocol": "HTTP/1.1",
            "requestId": str(uuid.uuid4()),
            "requestTimeEpoch": int(time.time() * 1000),
            "resourcePath": "/{proxy+}",
            "stage": stage,
        },
        **({"body": None, "isBase64Encoded": False} | (_body(exchange, body) if body else {})),
    }


def _api_identity(exchange: Exchange, identity: Identity | None) -> dict[str, Any]:
    return {
        "accessKey": identity.access_key if identity else None,
        "accountId": identity.account if identity else None,
        "caller": identity.user_id if identity else None,
        "cognitoIdentityId": None,
        "sourceIp": exchange.client,
        "user": identity.user_id if identity else None,
        "userAgent": exchange.header("user-agent"),
        "userArn": identity.user_arn if identity else None,
    }


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
        # The function's owner, not the signer.
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
    """Return the query's parameters. Values of a repeated one are joined."""
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
