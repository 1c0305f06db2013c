"""A small HTTP/1.1 server on h11. Bodies stream both ways, request trailers are kept, unknown callers are refused."""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs

import h11

from local.callers import PROGRAMS, REFUSAL, Callers
from local.ports import LOOPBACK

log = logging.getLogger(__name__)

READ_SIZE = 65536
Headers = list[tuple[str, str]]
NO_STORE = ("cache-control", "no-store")
_REFUSED = json.dumps(
    {"type": "about:blank", "title": "Local stack", "status": 403, "detail": REFUSAL, "code": "local"}
).encode()


class ClientGone(ConnectionError):
    """The other side closed the connection."""


class BodyTooLarge(ValueError):
    """The request's body is longer than allowed."""


class Exchange:
    """One request and the response to it."""

    def __init__(self, connection: "_Connection", request: h11.Request) -> None:
        """Keep the request line and the headers."""
        self._connection = connection
        self.method = request.method.decode("ascii")
        self.target = request.target.decode("latin-1")
        self.headers: Headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers]
        self.trailers: dict[str, str] = {}
        self._has_body = True
        self.client = connection.client

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        """The first value of each parameter."""
        return {name: values[0] for name, values in parse_qs(self.target.partition("?")[2]).items()}

    def header(self, name: str) -> str:
        """Return a header's value, with repeated headers joined by commas. Empty if there is none."""
        return ",".join(value for key, value in self.headers if key == name)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, then set `trailers`. Raises ClientGone if the body is incomplete."""
        while True:
            event = await self._connection.receive()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self.trailers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                return
            else:
                raise ClientGone("the body broke off")

    async def body(self, limit: int) -> bytes:
        """Return the complete body. One that is too long is read to its end, so that the client reads the refusal."""
        body = bytearray()
        too_large = False
        async for chunk in self.chunks():
            too_large = too_large or len(body) + len(chunk) > limit
            if not too_large:
                body += chunk
        if too_large:
            raise BodyTooLarge(f"more than {limit} bytes")
        return bytes(body)

    async def respond(self, status: int, headers: Iterable[tuple[str, str]] = (), body: bytes = b"") -> None:
        """Send a complete response."""
        framing = [] if _has_no_body(status) else [("content-length", str(len(body)))]
        await self.start(status, [*headers, *framing])
        await self.send(body)
        await self.finish()

    async def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Send the head of a response. Without a content-length, the body is chunked."""
        self._has_body = not _has_no_body(status) and self.method != "HEAD"
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._connection.send(h11.Response(status_code=status, headers=encoded))

    async def send(self, data: bytes) -> None:
        """Send a part of the body and wait while the reader is slow. Raises ClientGone if it has left."""
        if data and self._has_body:
            await self._connection.send(h11.Data(data=data))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Raise ClientGone in the block as soon as the client leaves, also while nothing is sent."""
        sending, sends = asyncio.current_task(), True

        def interrupt(gone: asyncio.Task[None]) -> None:
            if sends and sending and not gone.cancelled():
                sending.cancel()

        gone = asyncio.create_task(self._connection.left())
        gone.add_done_callback(interrupt)
        try:
            yield
        except asyncio.CancelledError:
            if not gone.done() or (sending and sending.uncancel()):
                raise
            raise ClientGone("the client left") from None
        finally:
            sends = False
            gone.cancel()
            await asyncio.wait([gone])  # only one may read a connection

    async def finish(self) -> None:
        """End the response."""
        await self._connection.send(h11.EndOfMessage())

    def abort(self) -> None:
        """Break the connection, so that the client sees that the response is incomplete."""
        self._connection.abort()


def below(prefix: str, path: str) -> str | None:
    """Return the rest of a path below an unguessable prefix, or None for any other path."""
    start = path[: len(prefix)]
    return path[len(prefix) :] if secrets.compare_digest(start.encode(), prefix.encode()) else None


def _has_no_body(status: int) -> bool:
    return status in {204, 304}


class Server:
    """Serves exchanges on a loopback port until it is closed."""

    def __init__(self, handler: Callable[[Exchange], Awaitable[None]], callers: Callers = PROGRAMS) -> None:
        """Take the function that answers each exchange, and the callers whose requests it accepts."""
        self._handler = handler
        self._callers = callers
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{LOOPBACK}:{self.port}"

    async def start(self, port: int = 0) -> None:
        """Listen on `port`, or on a free one."""
        self._server = await asyncio.start_server(self._connected, LOOPBACK, port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server:
            self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_Connection(reader, writer).serve(self._answer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _answer(self, exchange: Exchange) -> None:
        if self._callers.include(exchange.header):
            await self._handler(exchange)
        else:
            await exchange.respond(403, [("content-type", "application/problem+json"), NO_STORE], _REFUSED)


class _Connection:
    """One connection and its protocol state."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=READ_SIZE)
        self.client: str = writer.get_extra_info("peername")[0]

    async def serve(self, handler: Callable[[Exchange], Awaitable[None]]) -> None:
        try:
            while isinstance(request := await self.receive(), h11.Request):
                exchange = Exchange(self, request)
                await handler(exchange)
                if not await self._next_cycle(exchange):
                    return
        except asyncio.CancelledError:
            # A client that does not read must not keep the connection open.
            self.abort()
            raise
        except (ConnectionError, h11.RemoteProtocolError) as error:
            log.debug("connection ended: %s", error)
        except Exception:
            # No one awaits a connection's task, so its errors must be logged here.
            log.exception("request failed")
        finally:
            self._writer.close()

    async def receive(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Wait for the next event of the protocol and return it."""
        while True:
            event = self._protocol.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._protocol.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self._protocol.receive_data(await self._reader.read(READ_SIZE))

    async def left(self) -> None:
        """Wait until the client closes the connection. Its request has been read."""
        with suppress(ConnectionError):
            while data := await self._reader.read(READ_SIZE):
                self._protocol.receive_data(data)

    async def send(self, event: h11.Event) -> None:
        """Write an event and wait until the client has received most of it."""
        data = self._protocol.send(event)
        if self._writer.transport.is_closing():
            raise ClientGone("the client left")
        if data:
            self._writer.write(data)
            try:
                await self._writer.drain()
            except ConnectionError as error:
                raise ClientGone("the client left") from error

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _next_cycle(self, exchange: Exchange) -> bool:
        """Prepare for the next request on this connection. Returns False if there can be none."""
        if self._protocol.their_state is h11.SEND_BODY:
            with suppress(ClientGone):
                async for _ in exchange.chunks():
                    pass
        if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
            return False
        self._protocol.start_next_cycle()
        return True
