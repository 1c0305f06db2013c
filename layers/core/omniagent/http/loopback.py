"""Which names, addresses and origins are this machine."""

import ipaddress
import re
from typing import Final

_HOST: Final = r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9.-]+))(?::[0-9]{1,5})?"
_AUTHORITY: Final = re.compile(_HOST, re.IGNORECASE | re.ASCII)
_ORIGIN: Final = re.compile(rf"https?://(?P<authority>{_HOST})")
_LOCAL_NAME: Final = re.compile(r"(?:[a-z0-9-]+\.)*localhost", re.IGNORECASE | re.ASCII)


def is_loopback(host: str) -> bool:
    """Say whether a host, with or without a port, can only be this machine. Anything malformed is not."""
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
    """Say whether an Origin header names a web page of this machine: `null`, files and extensions are none."""
    match = _ORIGIN.fullmatch(origin)
    return match is not None and is_loopback(match["authority"])


def _is_loopback_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    # Python 3.13 takes IPv4 addresses inside IPv6 ones for loopback, 3.11 does not: here they are not.
    return address.is_loopback and getattr(address, "ipv4_mapped", None) is None and "%" not in text
