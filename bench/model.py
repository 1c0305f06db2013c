"""The model of all benchmarks: the offline model, which also reports when it sent a token.

`CLOCK` in a prompt's `[echo:…]` is replaced, when it is sent, with the system's monotonic time in microseconds: a
reader in any process on this machine can compute how long a token took to arrive.
"""

import argparse
import time

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from local.model import build_app
from local.model.journal import Journal

CLOCK = "9" * 12
_CLOCK = CLOCK.encode()


class Clock:
    """Replaces the placeholder in the app's output with the time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamped(message: Message) -> None:
            if _CLOCK in message.get("body", b""):
                message["body"] = message["body"].replace(_CLOCK, b"%012d" % (time.monotonic_ns() // 1000))
            await send(message)

        await self._app(scope, receive, stamped)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    app = Clock(build_app(journal=Journal(keep_requests=False)))
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, log_level="warning")
