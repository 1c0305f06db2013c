"""The connections of the HTTP clients: asyncio's own sockets under httpcore.

httpcore's own backend goes through anyio, which registers the socket with the event loop and opens a cancel scope for
each read: a fifth of the CPU of a streamed answer.
"""

import asyncio
import math
import select
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import httpcore2
from httpcore2 import SOCKET_OPTION

# A reader that falls behind by this much stops the sender.
MAX_BUFFERED_BYTES: Final = 1_048_576
LATE_SECONDS: Final = 0.1
"""A timer that is later than this shows that the event loop was blocked, or its process got no CPU."""
HELD_UP_SECONDS: Final = 1.0
"""How long a process that was held up looks whether its peer has answered meanwhile."""


@asynccontextmanager
async def peer_timeout(when: float) -> AsyncIterator[Callable[[], None]]:
    """`asyncio.timeout_at` for the silence of a peer: what has arrived while this process did not run is no silence.

    Yields what to call once the peer has spoken. A timeout that fires late is extended once, so that the loop can read
    what is in its sockets. `asyncio.timeout` would cancel the reader, which is behind it in the same round of the loop.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def expire(*, may_extend: bool) -> None:
        nonlocal timer
        now = loop.time()
        if may_extend and now - when > LATE_SECONDS:
            timer = loop.call_at(now + HELD_UP_SECONDS, partial(expire, may_extend=False))
        else:
            timeout.reschedule(now)

    def stop() -> None:
        timer.cancel()

    async with asyncio.timeout(None) as timeout:
        timer = loop.call_at(when, partial(expire, may_extend=True))
        try:
            yield stop
        finally:
            timer.cancel()


class AsyncioBackend(httpcore2.AsyncNetworkBackend):
    """Opens sockets on the running event loop: `httpcore2.AsyncConnectionPool(network_backend=AsyncioBackend())`."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        loop, local = asyncio.get_running_loop(), (local_address, 0) if local_address else None
        try:
            async with peer_timeout(loop.time() + (math.inf if timeout is None else timeout)):
                _, stream = await loop.create_connection(_SocketStream, host, port, local_addr=local)
        except TimeoutError as exc:
            raise httpcore2.ConnectTimeout(str(exc)) from exc
        except OSError as exc:
            raise httpcore2.ConnectError(str(exc)) from exc
        for option in socket_options or ():
            stream.get_extra_info("socket").setsockopt(*option)
        return stream

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _SocketStream(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """One connection, with or without TLS. One task reads and one writes at a time, as httpcore does."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._is_paused = False
        self._is_writable = True
        self._is_ended = False
        self._error: Exception | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # the loop makes no other kind for a socket

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > MAX_BUFFERED_BYTES and self._transport and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._is_ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ended = True
        self._error = self._error or exc
        self._transport = None
        self._wake()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._wake()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        while not self._received and not self._is_ended:
            try:
                await self._change(timeout)
            except TimeoutError as exc:
                raise httpcore2.ReadTimeout("no byte arrived in time") from exc
        if not self._received:
            if self._error is not None:
                raise httpcore2.ReadError(str(self._error)) from self._error
            return b""
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        if self._is_paused and self._transport and len(self._received) < MAX_BUFFERED_BYTES // 2:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's
        if not buffer:
            return
        if self._transport is None or self._transport.is_closing():
            raise httpcore2.WriteError(str(self._error or "the connection is closed")) from self._error
        self._transport.write(buffer)
        while not self._is_writable and self._transport is not None:
            try:
                await self._change(timeout)
            except TimeoutError as exc:
                raise httpcore2.WriteTimeout("the peer takes no more bytes") from exc

    async def aclose(self) -> None:
        if self._transport is not None:
            self._transport.abort()  # nothing is owed to the peer, and no closing handshake outlives the caller
            await asyncio.sleep(0)  # the socket is closed in the loop's next round

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
    ) -> httpcore2.AsyncNetworkStream:
        if self._transport is None:
            raise httpcore2.ConnectError(str(self._error or "the connection is closed")) from self._error
        if self._received:
            # Whoever is in between could send them: they must not be read as the peer's.
            await self.aclose()
            raise httpcore2.ConnectError("bytes arrived before the TLS handshake")
        try:
            async with peer_timeout(self._loop.time() + (math.inf if timeout is None else timeout)):
                self._transport = await self._loop.start_tls(
                    self._transport, self, ssl_context, server_hostname=server_hostname
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
        if info == "is_readable":
            wire: socket.socket | None = self._transport.get_extra_info("socket") if self._transport else None
            if self._is_ended or self._received or wire is None or wire.fileno() < 0:
                return True
            poll = select.poll()
            poll.register(wire.fileno(), select.POLLIN)
            return bool(poll.poll(0))
        if self._transport is None:
            return None
        names = {"client_addr": "sockname", "server_addr": "peername"}
        return self._transport.get_extra_info(names.get(info, info))

    async def _change(self, seconds: float | None) -> None:
        """Wait until something happened to the connection."""
        waiter = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, _expire, waiter)
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def _expire(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
