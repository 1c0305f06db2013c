"""The POST of a response to the Runtime API, chunked, on its own connection.

The head and the first bytes of the body are sent before the event loop continues with the turn's other work. After
that, a write is sent at once, unless one was sent less than a millisecond ago: then the writes of one event loop
iteration share one chunk and one system call. A broken connection does not fail the work that writes to it.
"""

import asyncio
import json
import logging
import re
import socket
from base64 import b64encode
from contextlib import suppress
from typing import Self

from omniagent.lambda_runtime.asgi import StreamingResult

logger = logging.getLogger(__name__)

_CONTENT_TYPE = "application/vnd.awslambda.http-integration-response"
_ERROR_TYPE = "Lambda-Runtime-Function-Error-Type"
_ERROR_BODY = "Lambda-Runtime-Function-Error-Body"
_DELIMITER = bytes(8)
# Bytes buffered for a slow reader before the producer has to wait.
_HIGH_WATER = 64 * 1024
# Go's HTTP server, which the Runtime API is, refuses trailers over 4 KB: 500 characters fit in any script.
_MESSAGE_LIMIT = 500
# Writes that follow each other within this time are collected. A model's tokens rarely do.
_PAUSE_SECONDS = 0.001
# The Runtime API is on this machine, where a connection is made or refused at once.
_CONNECT_SECONDS = 3.0
# Only the emulator of `make run` says that the reader has left. Lambda reads to the end.
_READER_LEFT = 410


class Beginning:
    """The beginning of a response. The constructor sends it outside the event loop, before any other work."""

    def __init__(self, address: str, invoke_id: str, invocation_id: str | None, result: StreamingResult) -> None:
        """Connect and send. `address` is the Runtime API's host and port, and optionally a path."""
        self.invoke_id = invoke_id
        self.has_body = bool(result.beginning)
        authority, _, base = address.partition("/")
        host, _, port = authority.partition(":")
        path = f"{base and '/' + base}/2018-06-01/runtime/invocation/{invoke_id}/response"
        # Prelude and delimiter are separate chunks: some emulators read them frame by frame.
        beginning = (
            _request_head(authority, path, invocation_id)
            + _frame(json.dumps(result.head, separators=(",", ":")).encode())
            + _frame(_DELIMITER)
            + (_frame(result.beginning) if self.has_body else b"")
        )
        self.connection = socket.create_connection((host, int(port or 80)), _CONNECT_SECONDS)
        try:
            self.unsent = beginning[_send_now(self.connection, beginning) :]
        except OSError:
            self.connection.close()
            raise


class StreamedPost:
    """The body writer of one invocation's response."""

    def __init__(self, beginning: Beginning, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        self._invoke_id = beginning.invoke_id
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self._sent_at = -_PAUSE_SECONDS
        self._empty = not beginning.has_body
        self._ended = asyncio.Event()
        self._reader_left = False
        self._verdict = self._loop.create_task(self._read_verdict())

    @classmethod
    async def open(cls, beginning: Beginning) -> Self:
        """Continue a response that has begun."""
        reader, writer = await asyncio.open_connection(sock=beginning.connection)
        writer.write(beginning.unsent)
        return cls(beginning, reader, writer)

    async def write(self, data: bytes) -> None:
        if self._reader_left:
            raise ConnectionResetError("the reader has left")
        if self._transport.is_closing():
            return
        self._empty = False
        now = self._loop.time()
        if not self._unsent and now - self._sent_at >= _PAUSE_SECONDS:
            self._sent_at = now
            self._transport.write(_frame(data))
        else:
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(data)
            self._unsent_size += len(data)
        if self._unsent_size + self._transport.get_write_buffer_size() > _HIGH_WATER:
            self._flush()
            with suppress(OSError):  # logged by _read_verdict
                await self._writer.drain()

    def end(self) -> None:
        self._finish(b"")

    def fail(self, error: BaseException) -> None:
        """End a body that cannot be completed. The caller sees it cut off."""
        self._finish(_error_trailers(error, self._invoke_id))

    async def closed(self) -> None:
        """Wait until the Runtime API has accepted or refused the response, or has closed the connection."""
        await self._verdict

    def _finish(self, trailers: bytes) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        if self._transport.is_closing():
            return
        self._flush()
        # A prelude without a body makes some Function URLs hang (aws-lambda-nodejs-runtime-interface-client#95,
        # aws-lambda-web-adapter#499). Any body avoids it; if the status allows none, HTTP drops it.
        newline = _frame(b"\n") if self._empty else b""
        self._transport.write(newline + b"0\r\n" + trailers + b"\r\n")

    def _flush(self) -> None:
        if self._unsent:
            frame = _frame(b"".join(self._unsent))
            self._unsent.clear()
            self._unsent_size = 0
            self._sent_at = self._loop.time()
            self._transport.write(frame)

    async def _read_verdict(self) -> None:
        """Read the Runtime API's answer, which may come early, and close the connection."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            status = int(head.split(maxsplit=2)[1])
            if status // 100 == 2:
                await self._ended.wait()
                self._writer.close()
            elif status == _READER_LEFT:
                self._reader_left = True
                self._transport.abort()
            else:
                detail = await self._reader.read(_body_length(head))
                logger.error("runtime api refused the response: %d %s", status, detail.decode(errors="replace"))
                self._transport.abort()
        except (OSError, EOFError):
            logger.exception("runtime api closed the connection, response lost")
            self._transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()


def _send_now(connection: socket.socket, data: bytes) -> int:
    """Send as much as the socket accepts without blocking. Returns the number of bytes."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as asyncio does
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0


def _request_head(authority: str, path: str, invocation_id: str | None) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {authority}",
        f"Content-Type: {_CONTENT_TYPE}",
        "Lambda-Runtime-Function-Response-Mode: streaming",
        "Transfer-Encoding: chunked",
        f"Trailer: {_ERROR_TYPE}, {_ERROR_BODY}",
        "Connection: close",
    ]
    if invocation_id:
        lines.append(f"Lambda-Runtime-Invocation-Id: {invocation_id}")
    return "\r\n".join([*lines, "", ""]).encode()


def _body_length(head: bytes) -> int:
    """Return how many bytes of an answer's body to wait for."""
    declared = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return min(int(declared[1]), 1000) if declared else 0


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _error_trailers(error: BaseException, invoke_id: str) -> bytes:
    """Return the error in awslambdaric's format, without the stack, which is in the log."""
    name = type(error).__name__
    body = {
        "errorMessage": str(error)[:_MESSAGE_LIMIT],
        "errorType": name,
        "requestId": invoke_id,
        "stackTrace": [],
    }
    encoded = b64encode(json.dumps(body, ensure_ascii=False).encode(errors="replace")).decode()
    return f"{_ERROR_TYPE}: {name}\r\n{_ERROR_BODY}: {encoded}\r\n".encode()
