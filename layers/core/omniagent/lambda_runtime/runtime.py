"""Response streaming for AWS's own Python runtime client.

It keeps awslambdaric's loop, context, logging, JSON and SnapStart hooks, and adds one thing: a `StreamingResult` is
posted in the Runtime API's streaming mode. The exec wrapper starts `__main__`.

A response is posted chunked, on a connection of its own. The head and the first bytes of the body are sent before the
event loop continues with the turn's other work. After that, a write is sent at once, unless one was sent less than a
millisecond ago: then the writes of one event loop iteration share one chunk and one system call. A broken connection
does not fail the work that writes to it.
"""

import asyncio
import gc
import json
import logging
import socket
from base64 import b64encode
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from awslambdaric import bootstrap  # type: ignore[import-untyped]

# awslambdaric ships no types: the two classes below are its only subclasses.
from awslambdaric.lambda_runtime_client import LambdaRuntimeClient  # type: ignore[import-untyped]
from awslambdaric.lambda_runtime_marshaller import LambdaMarshaller  # type: ignore[import-untyped]

from omniagent.lambda_runtime import event_loop
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


class StreamingMarshaller(LambdaMarshaller):  # type: ignore[misc]  # awslambdaric is untyped
    """Marshals to JSON, except for streamed results."""

    def marshal_response(self, response: Any) -> tuple[Any, str]:
        if isinstance(response, StreamingResult):
            return response, ""  # the post sets its own content type
        json_and_type: tuple[Any, str] = super().marshal_response(response)
        return json_and_type


class StreamingRuntimeClient(LambdaRuntimeClient):  # type: ignore[misc]  # awslambdaric is untyped
    """awslambdaric's client, extended by streamed results."""

    marshaller = StreamingMarshaller()
    lambda_runtime_address: str
    _invocations = 0

    def wait_next_invocation(self) -> Any:
        """Collect garbage first, while no caller waits.

        `gc.freeze` excludes the modules of the cold start and of the first invocation, so a collection takes less than
        a millisecond. There is none at the end of the cold start, because a caller waits then.
        """
        if self._invocations:
            gc.collect()
        if self._invocations <= 1:
            gc.freeze()
            gc.enable()
        self._invocations += 1
        return super().wait_next_invocation()

    def post_invocation_result(
        self,
        invoke_id: str,
        result_data: Any,
        content_type: str = "application/json",
        invocation_id: str | None = None,
    ) -> None:
        if not isinstance(result_data, StreamingResult):
            super().post_invocation_result(invoke_id, result_data, content_type, invocation_id)
            return
        event_loop.run(self.stream(invoke_id, invocation_id, result_data))

    def stream(self, invoke_id: str, invocation_id: str | None, result: StreamingResult) -> Coroutine[Any, Any, None]:
        """Send the beginning of a result, before the event loop runs on. The coroutine posts the rest."""
        return StreamedPost(self.lambda_runtime_address, invoke_id, invocation_id, result).post_rest()

    def call_rapid(self, http_method: str, endpoint: str, *arguments: Any, **named: Any) -> None:
        """Report a failed start or restore. Unlike awslambdaric, support an address with a path, as emulators use."""
        address = self.lambda_runtime_address
        self.lambda_runtime_address, slash, path = address.partition("/")
        try:
            super().call_rapid(http_method, f"{slash}{path}{endpoint}", *arguments, **named)
        finally:
            self.lambda_runtime_address = address


class StreamedPost:
    """The body writer of one invocation's response. The constructor sends the beginning, before any other work."""

    def __init__(self, address: str, invoke_id: str, invocation_id: str | None, result: StreamingResult) -> None:
        """Connect and send. `address` is the Runtime API's host and port, and optionally a path."""
        self._invoke_id = invoke_id
        self._result = result
        self._is_empty = not result.beginning
        self._ended = asyncio.Event()
        self._has_reader = True
        self._waiting = bytearray()
        """What is sent at the end of this iteration of the event loop."""
        self._sent_at = -_PAUSE_SECONDS
        authority, _, base = address.partition("/")
        host, _, port = authority.partition(":")
        path = f"{base and '/' + base}/2018-06-01/runtime/invocation/{invoke_id}/response"
        # Prelude and delimiter are separate chunks: some emulators read them frame by frame.
        beginning = (
            _request_head(authority, path, invocation_id)
            + _frame(json.dumps(result.head, separators=(",", ":")).encode())
            + _frame(_DELIMITER)
            + (b"" if self._is_empty else _frame(result.beginning))
        )
        self._connection = socket.create_connection((host, int(port or 80)), _CONNECT_SECONDS)
        try:
            self._unsent = beginning[_send_now(self._connection, beginning) :]
        except OSError:
            self._connection.close()
            raise

    async def post_rest(self) -> None:
        """Send the rest, and wait until the Runtime API has accepted or refused it, or has closed the connection."""
        self._loop = asyncio.get_running_loop()
        reader, self._writer = await asyncio.open_connection(sock=self._connection)
        self._transport = self._writer.transport
        self._transport.write(self._unsent)
        verdict = self._loop.create_task(self._read_verdict(reader))
        try:
            await self._result.stream(self)
            self.end()
        except Exception as error:
            logger.exception("response failed after its start")
            self.end(_error_trailers(error, self._invoke_id))  # the caller sees it cut off
        await verdict

    async def write(self, data: bytes) -> None:
        if not self._has_reader:
            raise ConnectionResetError("the reader has left")
        if self._transport.is_closing():
            return
        self._is_empty = False
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting += data
        if self._loop.time() - self._sent_at >= _PAUSE_SECONDS:
            self._flush()
        if len(self._waiting) + self._transport.get_write_buffer_size() > _HIGH_WATER:
            self._flush()
            with suppress(OSError):  # logged by _read_verdict
                await self._writer.drain()

    def end(self, trailers: bytes = b"") -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        if self._transport.is_closing():
            return
        self._flush()
        # A prelude without a body makes some Function URLs hang (aws-lambda-nodejs-runtime-interface-client#95,
        # aws-lambda-web-adapter#499). Any body avoids it; if the status allows none, HTTP drops it.
        newline = _frame(b"\n") if self._is_empty else b""
        self._transport.write(newline + b"0\r\n" + trailers + b"\r\n")

    def _flush(self) -> None:
        if self._waiting:
            self._transport.write(_frame(bytes(self._waiting)))
            self._waiting.clear()
            self._sent_at = self._loop.time()

    async def _read_verdict(self, reader: asyncio.StreamReader) -> None:
        """Read the Runtime API's answer, which may come early, and close the connection."""
        answer = b""
        with suppress(OSError):
            answer = await reader.read(4096)  # the status, and at least the beginning of a refusal's text
        head, _, detail = answer.partition(b"\r\n\r\n")
        status = int(head[9:12] or 0)
        if status // 100 == 2:
            await self._ended.wait()
            self._writer.close()
        else:
            if status == _READER_LEFT:
                self._has_reader = False
            elif status:
                logger.error("runtime api refused the response: %d %s", status, detail.decode(errors="replace"))
            else:
                logger.error("runtime api closed the connection, response lost")
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


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _error_trailers(error: BaseException, invoke_id: str) -> bytes:
    """Return the error in awslambdaric's format, without the stack, which is in the log."""
    name = type(error).__name__
    body = bootstrap.make_error(str(error)[:_MESSAGE_LIMIT], name, [], invoke_id)
    encoded = b64encode(json.dumps(body, ensure_ascii=False).encode(errors="replace")).decode()
    return f"{_ERROR_TYPE}: {name}\r\n{_ERROR_BODY}: {encoded}\r\n".encode()
