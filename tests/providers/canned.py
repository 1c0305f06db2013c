"""A server that answers with bytes written down in a test."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
HANG_UP = b"(hang up)"
"""Ends an answer after which the server closes the connection."""


@dataclass
class Canned:
    """What the server was sent: the requests in their order, and how many connections they took."""

    base_url: str = ""
    bodies: list[Json] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    connections: int = 0

    @property
    def keys(self) -> list[str]:
        lines = [line.split(": ", 1) for head in self.heads for line in head.split("\r\n") if ": " in line]
        return [
            value.removeprefix("Bearer ") for name, value in lines if name.lower() in {"authorization", "x-api-key"}
        ]


@asynccontextmanager
async def serve(*answers: bytes | Callable[[str, Json], bytes]) -> AsyncIterator[Canned]:
    """Give each request the next answer; the last one stays. An answer without an end leaves the client waiting.

    A function is called with the request's path and body.
    """
    seen = Canned()
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                sizes = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
                if sizes:  # a GET has no body
                    seen.bodies.append(json.loads(await reader.readexactly(int(sizes[0].partition(":")[2]))))
                seen.heads.append(head)
                answer = answers[min(len(seen.heads), len(answers)) - 1]
                if not isinstance(answer, bytes):
                    answer = answer(head.split()[1], seen.bodies[-1])
                writer.write(answer.removesuffix(HANG_UP))
                if answer.endswith(HANG_UP):
                    await writer.drain()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.transport.abort()
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(talk(reader, writer))
        talks.add(task)
        task.add_done_callback(talks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    seen.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield seen
    finally:
        server.close()
        for task in list(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


def frames(events: Iterable[Json], *, done: bool = False) -> list[bytes]:
    """Events as the APIs frame them."""
    named = [(f"event: {event['type']}\n" if "type" in event else "", json.dumps(event)) for event in events]
    end = [b"data: [DONE]\n\n"] if done else []
    return [*(f"{name}data: {data}\n\n".encode() for name, data in named), *end]


def stream(chunks: Sequence[bytes], *, headers: str = "", end: bool = True) -> bytes:
    """A chunked HTTP response in one write, with one HTTP chunk per piece."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n{headers}\r\n".encode()
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + body + (b"0\r\n\r\n" if end else b"")


def reply(status: int, body: Json | str) -> bytes:
    """A whole HTTP response."""
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    return (
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n".encode()
        + content
    )


def text_deltas(*texts: str) -> list[Json]:
    """A whole Responses answer that says these deltas."""
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "delta": text} for text in texts]
    return [*deltas, {"type": "response.completed", "response": {"status": "completed", "usage": None}}]


def message_events(*blocks: Json, stop: str | None = "end_turn", usage: Json | None = None, **delta: Any) -> list[Json]:
    """The events of a message. A block is as it begins, with its deltas under `deltas`."""
    events: list[Json] = [{"type": "message_start", "message": {"type": "message", "usage": {"input_tokens": 1}}}]
    for index, block in enumerate(blocks):
        start = {name: value for name, value in block.items() if name != "deltas"}
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        deltas = block.get("deltas", ())
        events += [{"type": "content_block_delta", "index": index, "delta": each} for each in deltas]
        events.append({"type": "content_block_stop", "index": index})
    ending: Json = {"delta": {"stop_reason": stop, **delta}, "usage": usage or {"output_tokens": 1}}
    end: list[Json] = [{"type": "message_delta", **ending}, {"type": "message_stop"}] if stop else []
    return [*events, *end]


def claude_text(*texts: str) -> Json:
    return {"type": "text", "text": "", "deltas": [{"type": "text_delta", "text": text} for text in texts]}


def tool_use(call_id: str, name: str, *pieces: str, kind: str = "tool_use") -> Json:
    """A block of a message that calls a tool, with its arguments in pieces."""
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return {"type": kind, "id": call_id, "name": name, "input": {}, "deltas": deltas}


def saying(api: str, *texts: str, call: tuple[str, str, str] | None = None) -> list[bytes]:
    """The frames of an answer of this API that says these deltas, and then calls a tool: its id, name, arguments."""
    match api:
        case "responses":
            *deltas, end = text_deltas(*texts)
            fields = ("call_id", "name", "arguments")
            item = {"type": "function_call", **dict(zip(fields, call or (), strict=False))}
            calls = [{"type": "response.output_item.done", "output_index": 1, "item": item}] if call else []
            return frames([*deltas, *calls, end])
        case "chat":
            pieces: list[Json] = [{"content": text} for text in texts]
            if call:
                function = {"name": call[1], "arguments": call[2]}
                pieces.append({"tool_calls": [{"index": 0, "id": call[0], "function": function}]})
            return frames(chat_chunks(*pieces, finish="tool_calls" if call else "stop"), done=True)
    blocks = [claude_text(*texts), *([tool_use(*call)] if call else [])]
    return frames(message_events(*blocks, stop="tool_use" if call else "end_turn"))


def chat_chunks(*deltas: Json, finish: str | None = "stop") -> list[Json]:
    """The chunks of a Chat Completions answer."""
    chunks: list[Json] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end: list[Json] = [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}] if finish else []
    return [*chunks, *end]
