"""Which names and addresses are this machine."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Say whether a host, with a port or without, can only be this machine."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host
    if name.count(":") == 1:
        name = name.partition(":")[0]
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
