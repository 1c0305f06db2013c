"""The sockets under every HTTP client: what httpcore relies on, against real servers."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpcore2
import pytest

from omniagent.network import AsyncioBackend
from tests.fixtures.certificates import Certificate, make_certificate

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


@asynccontextmanager
async def server(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def connect(port: int) -> httpcore2.AsyncNetworkStream:
    return await AsyncioBackend().connect_tcp("127.0.0.1", port, timeout=60)


async def test_everything_arrives_in_order_although_both_sides_are_slow() -> None:
    sent = b"".join(b"%08d" % number for number in range(500_000))

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(sent)))
        await writer.drain()

    async with server(echo) as port:
        stream = await connect(port)
        await stream.write(sent, timeout=60)
        received = b""
        while piece := await stream.read(65_536, timeout=60):
            received += piece
        await stream.aclose()
    assert received == sent


async def test_silence_is_a_read_timeout_and_the_connection_stays_usable() -> None:
    speak = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await speak.wait()
        writer.write(b"late")
        await writer.drain()

    async with server(serve) as port:
        stream = await connect(port)
        with pytest.raises(httpcore2.ReadTimeout):
            await stream.read(10, timeout=0.01)
        speak.set()
        assert await stream.read(10, timeout=60) == b"late"
        await stream.aclose()


async def test_a_connection_that_the_peer_closed_is_readable_at_its_end_and_takes_no_more() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with server(serve) as port:
        stream = await connect(port)
        assert await stream.read(10, timeout=60) == b""
        assert stream.get_extra_info("is_readable")
        await stream.aclose()
        with pytest.raises(httpcore2.WriteError):
            await stream.write(b"x")


async def test_a_reset_is_a_read_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        wire: socket.socket = writer.get_extra_info("socket")
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with server(serve) as port:
        stream = await connect(port)
        await stream.write(b"x")
        with pytest.raises(httpcore2.ReadError):
            await stream.read(10, timeout=60)
        await stream.aclose()


async def test_an_idle_connection_is_readable_only_once_it_is_closed() -> None:
    async with server(lambda reader, _: reader.readexactly(1)) as port:
        stream = await connect(port)
        assert not stream.get_extra_info("is_readable")
        await stream.aclose()
        assert stream.get_extra_info("is_readable")


async def test_nobody_listens() -> None:
    async with server(lambda *_: asyncio.sleep(0)) as port:
        pass
    with pytest.raises(httpcore2.ConnectError):
        await connect(port)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(Path(tmp_path_factory.mktemp("tls")))


async def test_a_request_over_tls_is_answered_and_its_connection_is_used_again(certificate: Certificate) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
            await writer.drain()

    async with server(serve, certificate.server_context()) as port:
        pool = httpcore2.AsyncConnectionPool(ssl_context=certificate.client_context(), network_backend=AsyncioBackend())
        async with pool:
            for _ in range(3):
                assert (await pool.request("GET", f"https://localhost:{port}/")).content == b"hello"
    assert connections == 1


async def test_a_certificate_of_somebody_else_is_refused(certificate: Certificate) -> None:
    async with server(lambda *_: asyncio.sleep(0), certificate.server_context()) as port:
        stream = await connect(port)
        with pytest.raises(httpcore2.ConnectError):
            await stream.start_tls(ssl.create_default_context(), "localhost", timeout=60)


async def test_bytes_before_the_handshake_are_not_taken_for_the_peers(certificate: Certificate) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"plain forged")
        await writer.drain()
        await writer.start_tls(certificate.server_context())
        await reader.read()

    async with server(serve) as port:
        stream = await connect(port)
        assert await stream.read(5, timeout=60) == b"plain"
        with pytest.raises(httpcore2.ConnectError, match="before the TLS handshake"):
            await stream.start_tls(certificate.client_context(), "localhost", timeout=60)
        assert stream.get_extra_info("is_readable"), "it is closed"
