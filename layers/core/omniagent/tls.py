"""TLS: one context for every HTTP client of the process, and the refusal of plain connections on Lambda."""

import ipaddress
import os
import ssl
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Final
from urllib.parse import urlsplit

from omniagent.errors import ConfigurationError

TASK_ROOT: Final = "/var/task"
"""LAMBDA_TASK_ROOT on AWS. Lambda reserves the variable: no deployment can set it."""
_UNVERIFIED: Final = ("tlsinsecure", "tlsallowinvalidcertificates", "tlsallowinvalidhostnames")


@cache
def tls_context() -> ssl.SSLContext:
    """Return the process's context. Reading the certificates takes 28 ms a time."""
    import httpx2  # loaded by whoever asks

    return httpx2.create_ssl_context()


def is_laptop(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process was started on a laptop (OMNIAGENT_LOCAL=1). On AWS the variable has no effect."""
    env = os.environ if environ is None else environ
    return env.get("OMNIAGENT_LOCAL") == "1" and env.get("LAMBDA_TASK_ROOT") != TASK_ROOT


def needs_tls(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process is a Lambda function: what it sends crosses networks of others."""
    env = os.environ if environ is None else environ
    return "AWS_LAMBDA_FUNCTION_NAME" in env and not is_laptop(env)


def check_url(name: str, url: str) -> None:
    """Refuse a URL without TLS on Lambda, unless it leads to this machine (a collector beside the function)."""
    if not url or not needs_tls():
        return
    try:
        parts = urlsplit(url)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and _is_this_machine(parts.hostname or ""))
    except ValueError:
        is_safe = False
    if not is_safe:
        raise ConfigurationError(f"{name} must be an https:// address: on Lambda nothing is sent in the clear")


def check_webhook_url(url: str) -> None:
    """Refuse the address of a webhook that is none, or without TLS on Lambda."""
    if not is_http_address(url):
        raise ConfigurationError("WEBHOOK_URL must be an https:// address")
    check_url("WEBHOOK_URL", url)


def is_http_address(url: str) -> bool:
    """Whether a URL names a server to call. `localhost:8000` does not: `localhost` is its scheme."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a port above 65535
        return False


def check_mongodb_uri(uri: str) -> None:
    """Refuse a MongoDB connection without verified TLS on Lambda, unless all its servers are on this machine."""
    if needs_tls():
        require_mongodb_tls(uri)


def require_mongodb_tls(uri: str) -> None:
    """Raise `ConfigurationError` for a URI that a function would refuse.

    The driver itself reads the options: it ignores those that it does not understand, such as `tls=TRUE`.
    """
    from pymongo import errors as driver
    from pymongo.uri_parser import split_hosts, split_options

    scheme, _, rest = uri.partition("://")
    address, _, query = rest.partition("?")
    hosts = address.partition("/")[0].rpartition("@")[2]
    try:
        with warnings.catch_warnings(action="ignore"):  # the connection will warn
            options = split_options(query, warn=True) if query else {}
        nodes = split_hosts(hosts)
    except (driver.PyMongoError, ValueError):
        raise ConfigurationError("the MongoDB URI is malformed: its TLS options cannot be read") from None
    if scheme == "mongodb" and all(_is_this_machine(host) for host, _ in nodes):
        return
    if not options.get("tls", scheme == "mongodb+srv"):
        raise ConfigurationError(
            "the MongoDB URI has no TLS: on Lambda it must begin with mongodb+srv:// or say tls=true in its options"
        )
    if unverified := next((name for name in _UNVERIFIED if options.get(name)), None):
        raise ConfigurationError(f"the MongoDB URI says {unverified}: on Lambda the server's certificate is verified")


def _is_this_machine(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
