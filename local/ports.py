"""Loopback ports."""

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a port that is free now. For servers that cannot bind port 0 and report the port they got."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
