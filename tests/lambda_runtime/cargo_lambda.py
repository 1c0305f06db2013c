"""cargo-lambda's emulator of Lambda, with what it lacks: a `cargo` to ask, and a Content-Type on its events."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from local.ports import LOOPBACK, free_port

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
    # The proxy outlives the emulator: its connections then end by themselves.
    async with _proxy(port) as front, _watch(binary, port, folder):
        yield Emulator(f"http://{LOOPBACK}:{port}/lambda-url/{FUNCTION}", f"{front}/.rt/{FUNCTION}")


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


@asynccontextmanager
async def _proxy(port: int) -> AsyncIterator[str]:
    """Pass requests on to `port`, one per connection, and give each answer a Content-Type."""
    relays: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.create_task(_relay(reader, writer, port))
        relays.add(relay)
        relay.add_done_callback(relays.discard)
        relay.add_done_callback(lambda _: writer.transport.abort())

    server = await asyncio.start_server(connected, LOOPBACK, 0)
    try:
        yield f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*relays, return_exceptions=True)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    upstream_reader, upstream_writer = await asyncio.open_connection(LOOPBACK, port)
    request = asyncio.create_task(_copy(reader, upstream_writer, b"Connection: close\r\n"))
    try:
        await _copy(upstream_reader, writer, b"Content-Type: application/json\r\nConnection: close\r\n")
    finally:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        upstream_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, header: bytes) -> None:
    """Copy a message, with one more header, as it comes."""
    first_line = await reader.readline()
    writer.write(first_line + header)
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()
