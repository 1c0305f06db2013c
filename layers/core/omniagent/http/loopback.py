"""Which names, addresses and origins are this machine."""

import ipaddress
import re
from typing import Final

_HOST: Final = r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9.-]+))(?::[0-9]{1,5})?"
_AUTHORITY: Final = re.compile(_HOST, re.IGNORECASE | re.ASCII)
_ORIGIN: Final = re.compile(rf"https?://(?P<authority>{_HOST})")
_LOCAL_NAME: Final = re.compile(r"(?:[a-z0-9-]+\.)*localhost", re.IGNORECASE | re.ASCII)


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, can only be this machine. False for anything malformed."""
    if _is_loopback_address(host):
        return True
    match = _AUTHORITY.fullmatch(host)
    if match is None:
        return False
    name = match["name"]
    if name and _LOCAL_NAME.fullmatch(name):
        return True
    return _is_loopback_address(name or match["v6"])


def is_loopback_origin(origin: str) -> bool:
    """Whether an Origin header is that of a web page of this machine. False for `null`, files and extensions."""
    match = _ORIGIN.fullmatch(origin)
    return match is not None and is_loopback(match["authority"])


def _is_loopback_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    # Python 3.13 counts IPv4-mapped IPv6 addresses as loopback, 3.11 does not. Here they never count.
    return address.is_loopback and getattr(address, "ipv4_mapped", None) is None and "%" not in text
