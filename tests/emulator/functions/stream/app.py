"""A streaming function on the product's own runtime. It keeps step with the test through a gate."""

import asyncio
import os
from urllib.parse import parse_qs

from mangum.types import Message, Receive, Scope, Send

from omniagent.lambda_runtime.asgi import StreamingHandler


async def pass_gate(message: str) -> None:
    """Say where we are, and wait until the test opens the gate."""
    host, port = os.environ["GATE"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(message.encode() + b"\n")
    await reader.readline()
    writer.close()
    await writer.wait_closed()


def body(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"x-session-id", b"s-1"),
        (b"set-cookie", b"a=1; Path=/"),
        (b"set-cookie", b"b=2"),
    ]
    await send({"type": "http.response.start", "status": int(query.get("status", "200")), "headers": headers})
    for number in range(int(query.get("events", "3"))):
        await send(body(b"data: %d\n\n" % number + b"." * int(query.get("padding", "0"))))
        if "gate" in query:
            await pass_gate(f"sent {number}")
    if "fail" in query:
        raise RuntimeError("as asked")
    await send(body(b"", more=False))
    if "after" in query:
        await pass_gate("finished")


handler = StreamingHandler(app)
