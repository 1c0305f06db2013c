"""Refuses plain connections on Lambda, except to this machine, and says which names and addresses are this machine."""

import ipaddress
import os
import re
import warnings
from typing import Final
from urllib.parse import urlsplit

from omniagent.errors import ConfigurationError

TASK_ROOT: Final = "/var/task"
"""LAMBDA_TASK_ROOT on AWS. Lambda reserves the variable: no deployment can set it."""
_UNVERIFIED: Final = ("tlsinsecure", "tlsallowinvalidcertificates", "tlsallowinvalidhostnames")
_HOST: Final = r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9.-]+))(?::[0-9]{1,5})?"
_LOCAL_NAME: Final = r"(?:[a-z0-9-]+\.)*localhost"


def is_laptop() -> bool:
    """Whether this process was started on a laptop (OMNIAGENT_LOCAL=1). On AWS the variable has no effect."""
    return os.environ.get("OMNIAGENT_LOCAL") == "1" and os.environ.get("LAMBDA_TASK_ROOT") != TASK_ROOT


def needs_tls() -> bool:
    """Whether this process is a Lambda function: what it sends crosses networks of others."""
    return "AWS_LAMBDA_FUNCTION_NAME" in os.environ and not is_laptop()


def is_http_address(url: str) -> bool:
    """Whether a URL names a server to call. `localhost:8000` does not: `localhost` is its scheme."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a port above 65535
        return False


def check_url(name: str, url: str) -> None:
    """Refuse what is no address, and on Lambda one without TLS that leads elsewhere than to this machine."""
    if url and not is_http_address(url):
        raise ConfigurationError(f"{name} is not an address: write it like https://api.example.com")
    parts = urlsplit(url)
    if parts.scheme == "http" and needs_tls() and not is_this_machine(parts.hostname or ""):
        raise ConfigurationError(f"{name} must be an https:// address: on Lambda nothing is sent in the clear")


def require_mongodb_tls(uri: str) -> None:
    """Raise `ConfigurationError` for a URI that a function would refuse.

    The driver itself reads the options: it ignores those that it does not understand, such as `tls=TRUE`.
    """
    from pymongo import errors as driver
    from pymongo.uri_parser import split_hosts, split_options

    scheme, _, rest = uri.partition("://")
    address, _, query = rest.partition("?")
    try:
        with warnings.catch_warnings(action="ignore"):  # the connection will warn
            options = split_options(query, warn=True) if query else {}
        nodes = split_hosts(address.partition("/")[0].rpartition("@")[2])
    except (driver.PyMongoError, ValueError):
        raise ConfigurationError("the MongoDB URI is malformed: its TLS options cannot be read") from None
    if scheme == "mongodb" and all(is_this_machine(host) for host, _ in nodes):
        return
    if not options.get("tls", scheme == "mongodb+srv"):
        raise ConfigurationError(
            "the MongoDB URI has no TLS: on Lambda it must begin with mongodb+srv:// or say tls=true in its options"
        )
    if unverified := next((name for name in _UNVERIFIED if options.get(name)), None):
        raise ConfigurationError(f"the MongoDB URI says {unverified}: on Lambda the server's certificate is verified")


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, can only be this machine. False for anything malformed."""
    if _is_loopback_address(host):
        return True
    match = re.fullmatch(_HOST, host, re.IGNORECASE | re.ASCII)
    if match is None:
        return False
    name = match["name"]
    if name and re.fullmatch(_LOCAL_NAME, name, re.IGNORECASE | re.ASCII):
        return True
    return _is_loopback_address(name or match["v6"])


def is_loopback_origin(origin: str) -> bool:
    """Whether an Origin header is that of a web page of this machine. False for `null`, files and extensions."""
    match = re.fullmatch(rf"https?://(?P<authority>{_HOST})", origin)
    return match is not None and is_loopback(match["authority"])


def _is_loopback_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    # Python 3.13 counts IPv4-mapped IPv6 addresses as loopback, 3.11 does not. Here they never count.
    return address.is_loopback and getattr(address, "ipv4_mapped", None) is None and "%" not in text


def is_this_machine(host: str) -> bool:
    """Whether a connection to the host stays here. A name other than `localhost` may be resolved elsewhere."""
    return host.lower() == "localhost" or _is_loopback_address(host)
