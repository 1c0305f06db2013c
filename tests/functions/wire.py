"""The wire between a function and what it calls: a proxy that counts connections, cuts them, and holds answers back."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from urllib.parse import SplitResult, urlsplit

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Gate:
    """Where the chunks of a streamed answer wait, each to be let through by the test."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[tuple[bytes, asyncio.Event]] = asyncio.Queue()
        self._came = asyncio.Condition()
        self._open = False

    async def let_through(self) -> bytes:
        """Let the next chunk on and return it; an empty one is the end of its answer."""
        chunk, passed = await self._waiting.get()
        passed.set()
        return chunk

    async def until_waiting(self, answers: int) -> None:
        """Wait until so many answers are held back."""
        async with self._came:
            await self._came.wait_for(lambda: self._waiting.qsize() >= answers)

    async def wait(self, chunk: bytes) -> None:
        if not self._open:
            passed = asyncio.Event()
            self._waiting.put_nowait((chunk, passed))
            async with self._came:
                self._came.notify_all()
            await passed.wait()

    def open(self) -> None:
        self._open = True
        while not self._waiting.empty():
            self._waiting.get_nowait()[1].set()


class Wire:
    """A proxy before a server. `url` leads through it; `accepted` counts the connections ever made."""

    def __init__(self, server: SplitResult) -> None:
        self._server = server
        self._ends: set[asyncio.StreamWriter] = set()
        self._gate: Gate | None = None
        self._is_down = False
        self.accepted = 0
        self.url = ""

    @contextmanager
    def held(self) -> Iterator[Gate]:
        """Hold back every streamed answer that is on its way while the context is open."""
        gate = self._gate = Gate()
        try:
            yield gate
        finally:
            self._gate = None
            gate.open()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Let nothing through while the context is open."""
        self._is_down = True
        self.cut()
        yield
        self._is_down = False

    def cut(self) -> int:
        """Cut every connection, as a server does with those that are idle too long. Returns how many there were."""
        ends = list(self._ends)
        for end in ends:
            end.transport.abort()
        return len(ends)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_down:
            writer.transport.abort()
            return
        self.accepted += 1
        self._ends.add(writer)
        server, to_server = await asyncio.open_connection(self._server.hostname, self._server.port)
        answer = self._pass_answers if self._server.scheme == "http" else _pump
        pumps = [asyncio.create_task(_pump(reader, to_server)), asyncio.create_task(answer(server, writer))]
        # Whichever side leaves, the other is told at once.
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        self._ends.discard(writer)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for end in (writer, to_server):
            end.close()
            with suppress(OSError):
                await end.wait_closed()

    async def _pass_answers(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await server.readuntil(b"\r\n\r\n")
                writer.write(head)
                if length := _LENGTH.search(head):
                    writer.write(await server.readexactly(int(length[1])))
                else:
                    await self._pass_chunks(server, writer)
                await writer.drain()

    async def _pass_chunks(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunk = b"-"
        while chunk:
            size = await server.readuntil(b"\r\n")
            framed = await server.readexactly(int(size, 16) + 2)
            chunk = framed[:-2]
            if self._gate:
                await self._gate.wait(chunk)
            writer.write(size + framed)
            await writer.drain()


@asynccontextmanager
async def wire_to(server: str) -> AsyncIterator[Wire]:
    """Open a wire to the server at a URL, and close it. Only the answers of HTTP servers can be held back."""
    parts = urlsplit(server)
    wire = Wire(parts)
    listener = await asyncio.start_server(wire.connected, "127.0.0.1", 0)
    wire.url = parts._replace(netloc=f"127.0.0.1:{listener.sockets[0].getsockname()[1]}").geturl()
    try:
        yield wire
    finally:
        listener.close()
        wire.cut()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
