"""Toy functions and a gate to keep step with them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from local.emulator import Emulator
from local.template import ROOT, Function, FunctionUrl
from omniagent.network import tls_context

FUNCTIONS = Path(__file__).parent / "functions"
STREAMING = FunctionUrl(invoke_mode="RESPONSE_STREAM")


def toy(name: str, **settings: Any) -> Function:
    """Describe one of the toy functions; those that stream run on the product's runtime, by its wrapper."""
    function = Function(
        logical_id=f"{name.capitalize()}Function",
        name=f"toy-{name}",
        code=FUNCTIONS / name,
        handler="app.handler",
        timeout=30,
        url=FunctionUrl(),
    )
    if name == "stream":
        wrapper = {"AWS_LAMBDA_EXEC_WRAPPER": "/opt/bin/streaming"}
        function = function.having(wrapper, url=STREAMING, layers=(ROOT / "layers" / "core",))
    environment = settings.pop("environment", None)
    return function.having(environment, **settings)


def get_event(query: str = "") -> dict[str, Any]:
    """Return the event of a GET request."""
    return {
        "version": "2.0",
        "headers": {},
        "rawPath": "/",
        "rawQueryString": query,
        "requestContext": {"http": {"method": "GET", "path": "/", "sourceIp": "127.0.0.1"}},
        "isBase64Encoded": False,
    }


class Gate:
    """Where a function waits until the test lets it on."""

    def __init__(self) -> None:
        self._arrivals: asyncio.Queue[tuple[str, asyncio.StreamWriter]] = asyncio.Queue()
        self._visitors: list[asyncio.StreamWriter] = []
        self.address = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._visitors.append(writer)
        message = (await reader.readline()).decode().strip()
        await self._arrivals.put((message, writer))

    async def arrival(self) -> tuple[str, Callable[[], None]]:
        """Wait for a function to come to the gate; returns what it says and the way to let it on."""
        message, writer = await self._arrivals.get()

        def let_on() -> None:
            writer.write(b"on\n")
            writer.close()

        return message, let_on

    async def close(self) -> None:
        """Send everyone away."""
        for writer in self._visitors:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    server = await asyncio.start_server(gate.connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    gate.address = f"{host}:{port}"
    yield gate
    server.close()
    await gate.close()


Start = Callable[..., Any]


@pytest.fixture
async def start(gate: Gate) -> AsyncIterator[Start]:
    """Start an emulator that lives as long as the test: `await start(toy("plain"), freeze=True)`."""
    async with AsyncExitStack() as stack:

        async def start(*functions: Function, **settings: Any) -> Emulator:
            settings["environment"] = {"GATE": gate.address, **settings.get("environment", {})}
            return await stack.enter_async_context(Emulator(functions, **settings))

        yield start


@pytest.fixture(scope="session")
async def plain() -> AsyncIterator[Emulator]:
    """An emulator of the plain function, for tests that do not care which process answers and what it did before."""
    async with Emulator([toy("plain")]) as emulator:
        yield emulator


@pytest.fixture(scope="session")
async def streaming() -> AsyncIterator[Emulator]:
    """The same of the function that streams."""
    async with Emulator([toy("stream")]) as emulator:
        yield emulator


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(verify=tls_context(), timeout=60, limits=limits, trust_env=False) as client:
        yield client
