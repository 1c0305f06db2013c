"""SnapStart: the function is initialised once, and every process starts as a copy of its memory.

`snapshot_agent` makes the copies, in the process itself. They have equal memory, dead connections, and no AWS keys in
their environment: a credentials endpoint serves the keys. Linux only.
"""

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from local.emulator.http import Exchange, Server
from local.emulator.invocation import FunctionFailed
from local.emulator.launch import Launched, follow_lines, start_process
from local.emulator.limits import Limits
from local.emulator.runtime_api import RuntimeApi
from local.emulator.sandbox import Sandbox
from local.emulator.snapshot_agent import CONTROL, GRAVEYARD, OUTPUT
from local.ports import LOOPBACK

CREDENTIALS_PATH = "/2021-04-23/credentials"
CREDENTIALS_LIFE_SECONDS = 6 * 3600.0
_KEYS = {"AWS_ACCESS_KEY_ID": "AccessKeyId", "AWS_SECRET_ACCESS_KEY": "SecretAccessKey", "AWS_SESSION_TOKEN": "Token"}


class CredentialsEndpoint:
    """Serves the keys of the function's role to callers with the token, which all copies share."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        """Take the keys, by the names of the environment variables that usually hold them."""
        self._keys = {field: keys.get(variable, "") for variable, field in _KEYS.items()}
        self._token = secrets.token_urlsafe(24)
        self._server = Server(self._handle)
        self.reads = 0
        self.life_seconds = CREDENTIALS_LIFE_SECONDS

    async def start(self) -> None:
        """Listen."""
        await self._server.start()

    async def close(self) -> None:
        """End."""
        await self._server.close()

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which a process finds the endpoint."""
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://{self._server.address}{CREDENTIALS_PATH}",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": self._token,
        }

    async def _handle(self, exchange: Exchange) -> None:
        await exchange.body(0)
        if exchange.path != CREDENTIALS_PATH or exchange.header("authorization") != self._token:
            await exchange.respond(403, [("content-type", "application/json")], b'{"errorType":"Forbidden"}')
            return
        self.reads += 1
        expires = datetime.fromtimestamp(time.time() + self.life_seconds, UTC)
        document = {**self._keys, "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}
        await exchange.respond(200, [("content-type", "application/json")], json.dumps(document).encode())


class _Listener(ABC):
    """A server that copies of a snapshot connect to."""

    def __init__(self) -> None:
        self.address = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._connected, LOOPBACK, 0, backlog=1024)
        self.address = _address(self._server)

    async def close(self) -> None:
        """Accept no more connections. Open ones end with the copies."""
        if self._server:
            self._server.close()

    @abstractmethod
    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...


class Graveyard(_Listener):
    """The peer of a restored snapshot's dead connections: it never answers, and keeps what is sent, for tests."""

    def __init__(self) -> None:
        """Begin with nothing sent."""
        super().__init__()
        self.received = bytearray()
        self._writers: set[asyncio.StreamWriter] = set()

    async def close(self) -> None:
        """Close the server and every connection."""
        await super().close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(ConnectionError):
            while data := await reader.read(4096):
                self.received += data
        self._writers.discard(writer)
        writer.close()


class Output(_Listener):
    """Receives the output of the copies, each on its own connection, so that their lines do not mix."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        """Pass the lines on."""
        super().__init__()
        self._on_line = on_line

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await follow_lines(reader, self._on_line)
        writer.close()


class Snapshot:
    """Starts processes as copies of one original, which the first launch initialises."""

    def __init__(
        self,
        sandbox: Sandbox,
        variables: Mapping[str, str],
        on_line: Callable[[str], None],
        init_seconds: float,
    ) -> None:
        """Prepare; nothing is started yet."""
        self._sandbox = sandbox
        self._variables = variables
        self._on_line = on_line
        self._init_seconds = init_seconds
        self._taking = asyncio.Lock()
        self._original: _Original | None = None
        self._originals: list[_Original] = []
        self.credentials = CredentialsEndpoint(variables)
        self.graveyard = Graveyard()
        self._output = Output(on_line)

    async def launch(self, runtime_api: str) -> Launched:
        """Restore a process."""
        async with self._taking:
            if not self._originals:
                await self.credentials.start()
                await self.graveyard.start()
                await self._output.start()
            if self._original is None:
                self._original = await self._take()
        return await self._original.copy({"AWS_LAMBDA_RUNTIME_API": runtime_api, **self._sandbox.log_stream()})

    def retake(self) -> None:
        """Take a new snapshot for the next process. Copies of the old one keep running."""
        self._original = None

    async def close(self) -> None:
        """End the original process, and with it all copies."""
        await asyncio.gather(*(original.close() for original in self._originals))
        await self.credentials.close()
        await self.graveyard.close()
        await self._output.close()

    async def _take(self) -> "_Original":
        if sys.platform != "linux":
            message = "SnapStart is simulated on Linux only: set the parameter SnapStart to off"
            raise FunctionFailed.platform("Sandbox.Unsupported", message)
        original = _Original()
        self._originals.append(original)
        try:
            await original.start(
                self._sandbox,
                {
                    **{name: value for name, value in self._variables.items() if name not in _KEYS},
                    **self.credentials.variables,
                    GRAVEYARD: self.graveyard.address,
                    OUTPUT: self._output.address,
                },
                self._on_line,
            )
            await asyncio.wait_for(original.taken(), self._init_seconds)
        except TimeoutError:
            message = f"not initialised after {self._init_seconds:g} seconds"
            raise FunctionFailed.platform("Sandbox.Timedout", message) from None
        return original


class _Original:
    """The process of which the snapshot is taken."""

    def __init__(self) -> None:
        self._api = RuntimeApi(Limits(), on_idle=self._went_on, on_init_error=self._fail)
        self._control: asyncio.Server | None = None
        self._taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer: asyncio.StreamWriter | None = None
        self._orders: deque[asyncio.Future[Launched]] = deque()
        self._copies: dict[int, asyncio.Future[int]] = {}
        self._process: Launched | None = None

    async def start(self, sandbox: Sandbox, variables: Mapping[str, str], on_line: Callable[[str], None]) -> None:
        """Start the process."""
        await self._api.start()
        self._control = await asyncio.start_server(self._connected, LOOPBACK, 0)
        environment = sandbox.environment(self._api.address, variables)
        self._process = await start_process(sandbox, {**environment, CONTROL: _address(self._control)}, on_line)
        self._process.ended.add_done_callback(self._ended)

    async def taken(self) -> None:
        """Wait until the snapshot is taken."""
        await asyncio.shield(self._taken)

    async def copy(self, variables: Mapping[str, str]) -> Launched:
        """Make a copy with these variables changed."""
        if self._writer is None or self._writer.is_closing():
            raise FunctionFailed.platform("Runtime.ExitError", "the process of the snapshot has ended")
        order: asyncio.Future[Launched] = asyncio.get_running_loop().create_future()
        self._orders.append(order)
        self._writer.write(json.dumps(variables).encode() + b"\n")
        return await asyncio.shield(order)

    async def close(self) -> None:
        """End the process. Its copies end with it."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.ended
        await self._api.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        with suppress(ConnectionError):
            while line := await reader.readline():
                self._hear(**json.loads(line))
        writer.close()

    def _hear(self, *, taken: bool = False, restored: int = 0, ended: int = 0, code: int = 0) -> None:
        if taken and not self._taken.done():
            self._taken.set_result(None)
        if restored:
            copy = self._copies[restored] = asyncio.get_running_loop().create_future()
            self._orders.popleft().set_result(Launched(restored, copy))
        if ended:
            self._copies.pop(ended).set_result(code)

    def _went_on(self) -> None:
        self._fail(FunctionFailed.platform("Runtime.ExitError", "the runtime took no snapshot: it knows no SnapStart"))

    def _fail(self, failure: FunctionFailed) -> None:
        if not self._taken.done():
            self._taken.set_exception(failure)
            self._taken.exception()

    def _ended(self, _: object) -> None:
        self._fail(FunctionFailed.platform("Runtime.ExitError", "Error: Runtime exited during initialisation"))
        failure = FunctionFailed.platform("Runtime.ExitError", "the process of the snapshot has ended")
        while self._orders:
            order = self._orders.popleft()
            order.set_exception(failure)
            order.exception()
        for copy in self._copies.values():
            copy.set_result(-signal.SIGKILL)
        self._copies.clear()


def _address(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()
    return f"{host}:{port}"
