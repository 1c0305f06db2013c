"""A gate before a server: everything passes, until a test holds one message, loses one, or shuts the gate."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from local.ports import LOOPBACK
from tests.faults.wire import Matches, Message, Wire

READ_SIZE = 65536
Side = Literal["request", "answer"]
Fate = Literal["pass", "lose"]


@dataclass
class Passage:
    """A request that went through, and when its answer did."""

    message: Message
    at: float
    answered_at: float | None = None


class Hold:
    """One message, or the answer to it, kept at the gate until the test says what becomes of it."""

    def __init__(self, matches: Matches, side: Side) -> None:
        self.matches = matches
        self.side = side
        loop = asyncio.get_running_loop()
        self._reached: asyncio.Future[None] = loop.create_future()
        self._fate: asyncio.Future[Fate] = loop.create_future()

    async def reached(self) -> None:
        """Wait until the message is at the gate. Its server has not seen it; for an answer, has done it."""
        await self._reached

    def let_pass(self) -> None:
        self._decide("pass")

    def lose(self) -> None:
        """Break the connection that the message is on."""
        self._decide("lose")

    async def keep(self) -> bool:
        """Keep what has come, and tell whether it may pass."""
        if not self._reached.done():
            self._reached.set_result(None)
        return await self._fate == "pass"

    def _decide(self, fate: Fate) -> None:
        if not self._fate.done():
            self._fate.set_result(fate)


class Gate:
    """A TCP proxy that understands requests. It listens on one port, open or shut."""

    def __init__(self, port: int, wire: Wire, *, keeps_journal: bool = False) -> None:
        self._upstream = port
        self._wire = wire
        self._keeps_journal = keeps_journal
        self._holds: list[Hold] = []
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.journal: list[Passage] = []

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, LOOPBACK, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Refuse everybody, as a server that is down does."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    async def close(self) -> None:
        """Shut for good."""
        self.shut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection there is."""
        for connection in list(self._connections):
            connection.cut()

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        """Shut for as long as the context lasts."""
        self.shut()
        try:
            yield
        finally:
            await self.open()

    @asynccontextmanager
    async def holding(self, matches: Matches, side: Side = "request") -> AsyncIterator[Hold]:
        """Hold the first message that matches. At the context's end it passes, if nothing else was decided."""
        hold = Hold(matches, side)
        self._holds.append(hold)
        try:
            yield hold
        finally:
            hold.let_pass()
            with suppress(ValueError):
                self._holds.remove(hold)

    def hold_for(self, message: Message) -> Hold | None:
        """Take the hold that waits for this message. Each holds once."""
        # All are asked: some recognise their message by what came before it.
        found = [hold for hold in self._holds if hold.matches(message)]
        for hold in found[:1]:
            self._holds.remove(hold)
        return found[0] if found else None

    def read(self, raw: bytes) -> Message | None:
        """Read a request, if there is anyone who wants to know."""
        return self._wire.read(raw) if self._holds or self._keeps_journal else None

    def note(self, message: Message) -> Passage | None:
        if not self._keeps_journal:
            return None
        passage = Passage(message, time.monotonic())
        self.journal.append(passage)
        return passage

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection(LOOPBACK, self._upstream)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, self._wire, (reader, writer), server)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """One connection through the gate. Requests on it are answered one after the other."""

    def __init__(self, gate: Gate, wire: Wire, client: Ends, server: Ends) -> None:
        self._gate = gate
        self._wire = wire
        self._client = client
        self._server = server
        self._answer_hold: Hold | None = None
        self._passage: Passage | None = None
        self._answered = asyncio.Event()
        self._answered.set()

    async def run(self) -> None:
        pumps = [asyncio.create_task(self._requests()), asyncio.create_task(self._answers())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self.cut()

    def cut(self) -> None:
        for _, writer in (self._client, self._server):
            writer.transport.abort()

    async def _requests(self) -> None:
        reader, (_, writer) = self._client[0], self._server
        waiting = b""
        while data := await reader.read(READ_SIZE):
            waiting += data
            while (length := self._wire.length(waiting)) is not None and len(waiting) >= length:
                request, waiting = waiting[:length], waiting[length:]
                if not await self._may_pass(request):
                    return
                self._answered.clear()
                writer.write(request)
                await writer.drain()
        # What a killed client has sent is still done by its server.
        await self._answered.wait()

    async def _may_pass(self, request: bytes) -> bool:
        message = self._gate.read(request)
        if message is None:
            return True
        hold = self._gate.hold_for(message)
        if hold is not None and hold.side == "request" and not await hold.keep():
            return False
        self._answer_hold = hold if hold is not None and hold.side == "answer" else None
        self._passage = self._gate.note(message)
        return True

    async def _answers(self) -> None:
        (reader, _), writer = self._server, self._client[1]
        while data := await reader.read(READ_SIZE):
            self._answered.set()
            hold, self._answer_hold = self._answer_hold, None
            if hold is not None and not await hold.keep():
                return
            if self._passage is not None and self._passage.answered_at is None:
                self._passage.answered_at = time.monotonic()
            writer.write(data)
            await writer.drain()
