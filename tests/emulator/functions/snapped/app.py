"""A function that draws its numbers and opens its connections while it starts, and says what it has."""

import asyncio
import os
import random
import socket
import threading
from typing import Any

import snapshot_restore_py  # type: ignore[import-untyped]

INIT = {"number": random.random(), "pid": os.getpid(), "key": os.environ.get("AWS_ACCESS_KEY_ID")}
LOOP = asyncio.new_event_loop()
HOOKS: list[str] = []
HOST, _, PORT = os.environ.get("UPSTREAM", "").partition(":")
UPSTREAM = socket.create_connection((HOST, int(PORT))) if PORT else None

snapshot_restore_py.register_before_snapshot(HOOKS.append, "before")
snapshot_restore_py.register_after_restore(HOOKS.append, "after")


async def woken_by_a_thread() -> str:
    """The loop that was made before the snapshot still hears of its own events."""
    woken = asyncio.Event()
    threading.Timer(0.01, asyncio.get_running_loop().call_soon_threadsafe, [woken.set]).start()
    await woken.wait()
    return "woken"


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    if UPSTREAM is not None and event.get("send"):
        UPSTREAM.sendall(event["send"].encode())
    if event.get("exit"):
        os._exit(3)
    return {
        "init": INIT,
        "drawn": random.random(),
        "pid": os.getpid(),
        "hooks": HOOKS,
        "loop": LOOP.run_until_complete(woken_by_a_thread()),
        "environment": dict(os.environ),
        "stream": context.log_stream_name,
    }
