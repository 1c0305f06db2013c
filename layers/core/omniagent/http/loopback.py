"""Which names and addresses are this machine."""

import ipaddress
import re
from typing import Final

_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9.-]+))(?::[0-9]{1,5})?", re.IGNORECASE)
_LOCAL_NAME: Final = re.compile(r"(?:[a-z0-9-]+\.)*localhost", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """Say whether a host, with or without a port, can only be this machine. Anything malformed is not."""
    if _is_loopback_address(host):
        return True
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match["name"]
    if name and _LOCAL_NAME.fullmatch(name):
        return True
    return _is_loopback_address(name or match["v6"])


def _is_loopback_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False
