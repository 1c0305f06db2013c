"""Copies of one process, as a snapshot makes them: equal memory and an equal process id. Prints what each one draws.

A fork is not enough: OpenSSL and BSON look at the process id, and a fork has its own. Here the original and its copies
are each the first process of a PID namespace, so all of them have the id 1.
"""

import ctypes
import json
import os
import platform
import random
import signal
import ssl
import sys
import uuid
from collections.abc import Callable

from bson import ObjectId

from omniagent.lambda_runtime import snapshots

COPIES = 2
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
NOT_ALLOWED = 77
"""The exit code where the machine does not let its users make namespaces."""


def cloned(work: Callable[[], None], flags: int) -> None:
    """Run something in a copy of this process that is the first of a PID namespace, and wait for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    pid = libc.syscall(SYS_CLONE[platform.machine()], flags | CLONE_NEWPID | signal.SIGCHLD, 0, 0, 0, 0)
    if pid < 0:
        sys.exit(NOT_ALLOWED)
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def restored(hook: Callable[[], None] | None) -> None:
    """Print what a copy draws, after its hook."""
    if hook is not None:
        hook()
    drawn = {
        "pid": os.getpid(),
        "OpenSSL": ssl.RAND_bytes(16).hex(),
        "random": random.getrandbits(64),
        "ObjectId": ObjectId().binary[4:9].hex(),
        "uuid4": uuid.uuid4().hex,
    }
    print(json.dumps({"hook": hook is not None} | drawn), flush=True)


def original() -> None:
    """Draw once from everything, as the start of a function does, and be restored."""
    for draw in (lambda: ssl.RAND_bytes(16), random.random, ObjectId):
        draw()
    for hook in (None, snapshots.after_restore):
        for _ in range(COPIES):
            cloned(lambda hook=hook: restored(hook), 0)  # type: ignore[misc]


if __name__ == "__main__":
    cloned(original, CLONE_NEWUSER)
