"""CORS rules of a Function URL, applied in front of the function, as AWS does."""

from local.emulator.http import Exchange, Headers
from local.template import Cors


def is_preflight(exchange: Exchange) -> bool:
    """Whether the request is a browser's CORS preflight."""
    return (
        exchange.method == "OPTIONS"
        and bool(exchange.header("origin"))
        and bool(exchange.header("access-control-request-method"))
    )


def preflight_headers(cors: Cors, exchange: Exchange) -> Headers:
    """Return the headers that allow the request, or none if the origin is not allowed."""
    allowed = response_headers(cors, exchange)
    if not allowed:
        return []
    allowed = [(name, value) for name, value in allowed if name != "access-control-expose-headers"]
    if cors.allow_methods:
        allowed.append(("access-control-allow-methods", ",".join(cors.allow_methods)))
    if cors.allow_headers:
        allowed.append(("access-control-allow-headers", ",".join(cors.allow_headers)))
    if cors.max_age:
        allowed.append(("access-control-max-age", str(cors.max_age)))
    return allowed


def response_headers(cors: Cors, exchange: Exchange) -> Headers:
    """Return the CORS headers of a response, or none if the origin is not allowed."""
    origin = exchange.header("origin")
    anyone = "*" in cors.allow_origins
    if not origin or not (anyone or origin in cors.allow_origins):
        return []
    headers = [("access-control-allow-origin", origin), ("vary", "Origin")]
    if cors.expose_headers:
        headers.append(("access-control-expose-headers", ",".join(cors.expose_headers)))
    if cors.allow_credentials:
        headers.append(("access-control-allow-credentials", "true"))
    return headers
