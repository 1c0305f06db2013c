"""The servers of a process tree, as anybody on the machine can find them."""

import os
from contextlib import suppress
from pathlib import Path

LISTENING = "0A"


def listening_ports(pids: set[int]) -> set[int]:
    """Return the TCP ports on which these processes listen."""
    sockets = {link for pid in pids for link in _open_files(pid) if link.startswith("socket:")}
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _open_files(pid: int) -> list[str]:
    links = []
    with suppress(FileNotFoundError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                links.append(os.readlink(file))  # noqa: PTH115 - what a socket links to is no path
    return links
