"""A second opinion on the protocol: cargo-lambda's emulator of Lambda, with what it lacks: a `cargo` to ask, and a
Content-Type on its events.
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from local.ports import LOOPBACK, free_port
from tests.fixtures.meetings import Meeting
from tests.fixtures.proxy import proxy_to
from tests.fixtures.wire_formats import Piece, WireFormat
from tests.lambda_runtime.processes import function, through_wrapper

FUNCTION = "toy"


@dataclass(frozen=True)
class Emulator:
    url: str
    """The function's URL."""
    runtime_api: str


@asynccontextmanager
async def cargo_lambda(folder: Path) -> AsyncIterator[Emulator]:
    """Run the emulator for one function, which the caller starts, and a proxy before its Runtime API."""
    beside_python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    binary = shutil.which("cargo-lambda", path=beside_python)
    assert binary, "cargo-lambda is a development dependency: make the environment again"
    port = free_port()
    _write_cargo(folder)
    emulator = f"http://{LOOPBACK}:{port}"
    async with _watch(binary, port, folder), proxy_to(emulator, _JsonAnswers()) as front:
        yield Emulator(f"{emulator}/lambda-url/{FUNCTION}", f"{urlsplit(front.url).netloc}/.rt/{FUNCTION}")


@asynccontextmanager
async def _watch(binary: str, port: int, folder: Path) -> AsyncIterator[None]:
    with (folder / "emulator.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(binary, "lambda", "watch", "--only-lambda-apis", "-A", LOOPBACK, "-P", str(port)),
            env={"PATH": str(folder), "HOME": str(folder)},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        await _listening(port, process)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _write_cargo(folder: Path) -> None:
    """The emulator wants a Rust project and asks cargo for its binaries: this one has one, never built."""
    target = {"kind": ["bin"], "crate_types": ["bin"], "name": FUNCTION, "src_path": "main.rs", "edition": "2021"}
    package = {
        "name": FUNCTION,
        "version": "0.0.0",
        "id": FUNCTION,
        "dependencies": [],
        "features": {},
        "targets": [target],
        "manifest_path": "Cargo.toml",
    }
    metadata = {
        "packages": [package],
        "workspace_members": [FUNCTION],
        "target_directory": "target",
        "workspace_root": ".",
        "version": 1,
    }
    (folder / "Cargo.toml").write_text(f'[package]\nname = "{FUNCTION}"\nversion = "0.0.0"\n')
    cargo = folder / "cargo"
    cargo.write_text(f"#!/bin/sh\necho '{json.dumps(metadata)}'\n")
    cargo.chmod(0o755)


async def _listening(port: int, process: asyncio.subprocess.Process) -> None:
    while True:
        assert process.returncode is None, "the emulator has ended; see emulator.log"
        with suppress(ConnectionError):
            _, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.close()
            await writer.wait_closed()
            return
        await asyncio.sleep(0.01)


class _JsonAnswers(WireFormat):
    """Bytes that pass as they come, except that an answer gets a Content-Type. There is one on each connection."""

    async def pieces(self, reader: asyncio.StreamReader) -> AsyncIterator[Piece]:
        if first_line := await reader.readline():
            yield Piece(first_line + b"Content-Type: application/json\r\nConnection: close\r\n")
        async for piece in super().pieces(reader):
            yield piece


async def test_responses_arrive_as_sent_through_a_third_partys_function_url(
    tmp_path: Path, layer: Path, log: Path, stage: Meeting
) -> None:
    async with (
        cargo_lambda(tmp_path) as emulator,
        function(through_wrapper(layer), log, handler="app.handler", api=emulator.runtime_api, MEETING=stage.address),
        httpx.AsyncClient(timeout=None) as client,
    ):
        # Without a query this emulator says null where Lambda says "".
        async with client.stream("POST", f"{emulator.url}/events?a=1", json={"id": "s-1"}) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/event-stream"
            assert response.headers["x-session-id"] == "s-1"
            assert response.headers.get_list("set-cookie") == ["a=1; Path=/", "b=2"]
            number = 0
            async for event in response.aiter_raw():
                assert event == b"data: %d\n\n" % number
                assert await stage.hear() == f"sent {number}"
                number += 1
            assert number == 3
        empty = await client.get(f"{emulator.url}/empty?a=1")
        assert (empty.status_code, empty.headers["x-answer"], empty.content) == (204, "none", b"")
        assert await stage.hear() == "sent"
