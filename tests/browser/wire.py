"""A cable between the browser and the stack, to be cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

CHUNK = 65_536


class Wire:
    """Forwards TCP connections. `cut` ends those that are open; while `broken`, new ones end at once."""

    def __init__(self, url: str) -> None:
        target = urlsplit(url)
        self._target = (target.hostname or "", target.port or 80)
        self._open: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.broken = False
        self.deaf = False
        """While true, what the server answers is lost on the way: the browser cannot know whether it was heard."""

    @property
    def url(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._connections)

    def cut(self) -> None:
        """End every connection, in the middle of whatever it carries."""
        for writer in self._open:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        ends = [writer]
        try:
            if not self.broken:
                up_reader, up_writer = await asyncio.open_connection(*self._target)
                ends.append(up_writer)
                self._open.update(ends)
                await asyncio.gather(self._carry(reader, up_writer), self._carry_back(up_reader, writer))
        finally:
            self._open.difference_update(ends)
            await asyncio.gather(*(_end(end) for end in ends))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _carry_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while (data := await reader.read(CHUNK)) and not self.deaf:
                writer.write(data)
                await writer.drain()
        writer.close()


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def open_wire(url: str) -> AsyncIterator[Wire]:
    wire = Wire(url)
    await wire.start()
    try:
        yield wire
    finally:
        await wire.close()
