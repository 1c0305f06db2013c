"""The model that everyone talks to: the offline one, which also tells when it sent what.

`CLOCK` in a prompt's `[echo:…]` is replaced, when it is sent, by the system's monotonic time in microseconds: a reader
in any process on this machine can tell how long a token was under way.
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
    """Writes the time over the placeholder in whatever the app sends."""

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
