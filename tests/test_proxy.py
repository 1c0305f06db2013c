"""The proxy of the tests leaves nothing open."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.fixtures.proxy import Proxy


async def test_a_client_whose_server_is_not_reached_yet_is_closed_with_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = Proxy("http://127.0.0.1:9")
    await proxy.open()
    address, connect, asked = urlsplit(proxy.url), asyncio.open_connection, asyncio.Event()

    async def never(*_: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", never)
    reader, writer = await connect(address.hostname, address.port)
    await asked.wait()
    await proxy.close()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
