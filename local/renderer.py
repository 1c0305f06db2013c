"""Renders Markdown in a process of its own, within a size and a time."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress

from local.leash import leashed
from local.processes import clean_environment
from local.template import ROOT

MAX_CHARS = 200_000
MAX_TREE_BYTES = 64 * 1024 * 1024
SECONDS = 5.0


class NotRendered(Exception):
    """The text stays as it is. The message says why."""


class Renderer:
    """One process for all pages, started when it is first needed, killed when a text takes too long."""

    def __init__(self, seconds: float = SECONDS) -> None:
        """Start nothing yet. A text gets `seconds`, once its turn has come."""
        self.seconds = seconds
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    async def render(self, text: str) -> bytes:
        """Return the tree of a text as JSON. Raises NotRendered."""
        if len(text) > MAX_CHARS:
            raise NotRendered(f"more than {MAX_CHARS} characters")
        async with self._turn:
            try:
                process = self._process = self._process or await _start()
                async with asyncio.timeout(self.seconds):
                    tree = await _ask(process, text)
            except TimeoutError:
                await self._end()
                raise NotRendered(f"it took more than {self.seconds:g} seconds") from None
            except (OSError, ValueError) as error:  # a line without an end, or longer than the limit
                await self._end()
                raise NotRendered("the renderer ended") from error
            except BaseException:
                # What it answers next would be the answer to this text.
                await self._end()
                raise
        return tree

    async def close(self) -> None:
        """End the process."""
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _start() -> Process:
    command = leashed([sys.executable, "-m", "local.markdown"])
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=clean_environment(),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        limit=MAX_TREE_BYTES,
        start_new_session=True,
    )
    # Its imports are no part of a text's time.
    await _ask(process, "")
    return process


async def _ask(process: Process, text: str) -> bytes:
    if process.stdin is None or process.stdout is None:
        raise ValueError("no pipes")
    process.stdin.write(json.dumps(text).encode() + b"\n")
    await process.stdin.drain()
    tree = await process.stdout.readline()
    if not tree.endswith(b"\n"):
        raise ValueError("no answer")
    return tree.rstrip()
