"""A function made of one small ASGI app per path, to be started by a runtime under test.

`meet` is how an app and the test keep step: the app says what it has done and waits to be sent on.
"""

import asyncio
import json
import os
import socket
import sys
from typing import Any

from mangum.types import Message, Receive, Scope, Send

import omniagent.aws
from omniagent.lambda_runtime.asgi import StreamingHandler, buffered_handler

_TOTAL = 64 * 2**20
_PIECE = b"." * 2**15


def _place() -> tuple[str, int]:
    host, port = os.environ["MEETING"].split(":")
    return host, int(port)


async def meet(message: str) -> None:
    reader, writer = await asyncio.open_connection(*_place())
    writer.write(message.encode() + b"\n")
    await reader.readline()
    writer.close()
    await writer.wait_closed()


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def events(scope: Scope, receive: Receive, send: Send) -> None:
    """Three events, each only after the test has seen the one before."""
    await send(
        start(
            200,
            (b"content-type", b"text/event-stream"),
            (b"x-session-id", b"s-1"),
            (b"set-cookie", b"a=1; Path=/"),
            (b"set-cookie", b"b=2"),
        )
    )
    for number in range(3):
        await send(body(b"data: %d\n\n" % number))
        await meet(f"sent {number}")
    await send(body(b"", more=False))


async def identity(scope: Scope, receive: Receive, send: Send) -> None:
    """Who answers, and what it was asked."""
    request = await receive()
    answer = {
        "body": request["body"].decode(),
        "event": scope["aws.event"],
        "request_id": scope["aws.context"].aws_request_id,
        "cookie": dict(scope["headers"]).get(b"cookie", b"").decode(),
        "query": scope["query_string"].decode(),
        "pid": os.getpid(),
        "loop": id(asyncio.get_running_loop()),
        "package": omniagent.aws.__file__,
        "path": sys.path,
    }
    data = json.dumps(answer).encode()
    await send(start(201, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))))
    await send(body(data, more=False))


class Cycle:
    """Refers to itself, so that only the collector can free it."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Cycle.alive += 1

    def __del__(self) -> None:
        Cycle.alive -= 1


async def garbage(scope: Scope, receive: Receive, send: Send) -> None:
    """Leave garbage, and tell how much earlier invocations have left."""
    data = json.dumps({"left": Cycle.alive}).encode()
    Cycle()
    await send(start(200, (b"content-type", b"application/json")))
    await send(body(data, more=False))


async def empty(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start(204, (b"x-answer", b"none"), (b"content-length", b"0")))
    await send(body(b"", more=False))
    await meet("sent")


async def fails_early(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start())
    raise RuntimeError("before the first byte")


async def fails_late(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start())
    await send(body(b"half of"))
    raise RuntimeError("after the first byte" + "!" * 10_000)


async def cancelled(scope: Scope, receive: Receive, send: Send) -> None:
    raise asyncio.CancelledError


async def stops_short(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start())
    await send(body(b"half of"))


async def fails_when_done(scope: Scope, receive: Receive, send: Send) -> None:
    """As Starlette does: answer 500, then raise for the server's log."""
    await send(start(500))
    await send(body(b"sorry", more=False))
    raise RuntimeError("told already")


async def flood(scope: Scope, receive: Receive, send: Send) -> None:
    """Much data, with a count of what has been let go in the file COUNTER."""
    await send(start())
    counter = os.open(os.environ["COUNTER"], os.O_WRONLY)
    for sent in range(len(_PIECE), _TOTAL + 1, len(_PIECE)):
        await send(body(_PIECE))
        os.pwrite(counter, sent.to_bytes(8, "big"), 0)
    os.close(counter)
    await send(body(b"", more=False))


async def burst(scope: Scope, receive: Receive, send: Send) -> None:
    """A hundred pieces in one turn of the event loop."""
    await send(start())
    for number in range(100):
        await send(body(b"%d " % number))
    await send(body(b"", more=False))


async def occupied(scope: Scope, receive: Receive, send: Send) -> None:
    """A response whose process has other work as soon as it has begun, until the test goes on."""
    _returned.clear()
    work = asyncio.create_task(_occupy_the_loop())
    await send(start())
    await send(body(b"first"))
    await work
    await send(body(b"last", more=False))


async def _occupy_the_loop() -> None:
    await _returned.wait()
    with socket.create_connection(_place()) as meeting:
        meeting.sendall(b"occupied\n")
        meeting.recv(100)


async def abandoned(scope: Scope, receive: Receive, send: Send) -> None:
    """More than any buffer holds, after the test has taken the reader away."""
    await send(start())
    await send(body(b"first"))
    await meet("begun")
    for _ in range(0, _TOTAL, len(_PIECE)):
        await send(body(_PIECE))
    await send(body(b"", more=False))
    await meet("finished")


async def disconnect(scope: Scope, receive: Receive, send: Send) -> None:
    """Listen for a disconnect all the while."""
    await receive()
    heard = asyncio.create_task(_next(receive))
    await send(start())
    await send(body(b"first"))
    await meet(f"disconnected {heard.done()}")
    await send(body(b"last", more=False))
    await meet(f"then {(await heard)['type']}")


async def _next(receive: Receive) -> Message:
    return await receive()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Be the app that is named like the path: `/fails-early` is `fails_early`."""
    await globals()[scope["path"][1:].replace("-", "_")](scope, receive, send)


streaming = StreamingHandler(app)
_returned = asyncio.Event()


def handler(event: dict[str, Any], context: Any) -> Any:
    result = streaming(event, context)
    _returned.set()
    return result


buffered = buffered_handler(app)


def plain(event: dict[str, Any], context: object) -> dict[str, Any]:
    """A handler that has nothing to do with HTTP."""
    return {"echo": event}
