"""The connections of the HTTP clients: asyncio's own sockets under httpcore, and one TLS context for all.

httpcore's own backend goes through anyio, which registers the socket with the event loop and opens a cancel scope for
each read: a fifth of the CPU of a streamed answer.
"""

import asyncio
import select
import socket
import ssl
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpcore2


@cache
def tls_context() -> ssl.SSLContext:
    """Return the process's context. Reading the certificates takes 15 ms a time."""
    return httpcore2.default_ssl_context()


def open_pool(most: int | None = 10) -> httpcore2.AsyncConnectionPool:
    """Open a pool of up to `most` connections, without a limit for None."""
    return httpcore2.AsyncConnectionPool(
        ssl_context=tls_context(), max_connections=most, network_backend=AsyncioBackend()
    )


class AsyncioBackend(httpcore2.AsyncNetworkBackend):
    """Opens sockets on the running event loop: `AsyncConnectionPool(network_backend=AsyncioBackend())`."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        *_: Any,
        **__: Any,
    ) -> httpcore2.AsyncNetworkStream:
        """Open a connection. The options that no pool here has are ignored."""
        try:
            async with asyncio.timeout(timeout):
                loop = asyncio.get_running_loop()
                transport, stream = await loop.create_connection(_SocketStream, host, port)
        except TimeoutError as exc:
            raise httpcore2.ConnectTimeout(str(exc)) from exc
        except OSError as exc:
            raise httpcore2.ConnectError(str(exc)) from exc
        stream.transport = transport
        return stream


@dataclass(eq=False)
class _SocketStream(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """One connection, with or without TLS. One task reads and one writes at a time, as httpcore does.

    It reads and writes without flow control: the length of an answer limits what is received, and a request's body is
    in memory anyway.
    """

    transport: asyncio.Transport = field(init=False)
    _received: bytearray = field(default_factory=bytearray)
    _waiter: "asyncio.Future[None] | None" = None
    _is_ended: bool = False
    _error: Exception | None = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ended, self._error = True, exc
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        if not self._received and not self._is_ended:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if timeout is None else loop.call_later(timeout, self._wake)
            try:
                await self._waiter
            finally:
                if timer is not None:
                    timer.cancel()
        if self._received:
            data = bytes(self._received[:max_bytes])
            del self._received[:max_bytes]
            return data
        if not self._is_ended:
            raise httpcore2.ReadTimeout("no byte arrived in time")
        if self._error is not None:
            raise httpcore2.ReadError(str(self._error)) from self._error
        return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109 - httpcore's
        if self.transport.is_closing():
            raise httpcore2.WriteError(str(self._error or "the connection is closed")) from self._error
        self.transport.write(buffer)

    async def aclose(self) -> None:
        self.transport.abort()  # nothing is owed to the peer, and no closing handshake outlives the caller
        await asyncio.sleep(0)  # the socket is closed in the loop's next round

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
    ) -> httpcore2.AsyncNetworkStream:
        if self._received or self._is_ended:
            # Whoever is in between could send bytes: they must not be read as the peer's.
            await self.aclose()
            raise httpcore2.ConnectError("bytes arrived before the TLS handshake, or the connection was closed")
        try:
            async with asyncio.timeout(timeout):
                self.transport = await asyncio.get_running_loop().start_tls(  # type: ignore[assignment]  # never None
                    self.transport, self, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError as exc:
            await self.aclose()
            raise httpcore2.ConnectTimeout("no TLS handshake in time") from exc
        except OSError as exc:  # ssl.SSLError is one
            await self.aclose()
            raise httpcore2.ConnectError(str(exc)) from exc
        return self

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks for. An idle connection that became readable was closed by the peer."""
        if info != "is_readable":
            return self.transport.get_extra_info(info)
        wire: socket.socket = self.transport.get_extra_info("socket")
        if self._is_ended or self._received or wire.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(wire.fileno(), select.POLLIN)
        return bool(poll.poll(0))
