"""Renders Markdown in a separate process, with limits on size and time."""

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
    """The text cannot be rendered. The message says why."""


class Renderer:
    """One process for all pages, started on first use, killed if a text takes too long."""

    def __init__(self, seconds: float = SECONDS) -> None:
        """Start nothing yet. Each text may take `seconds`, not counting the wait for earlier texts."""
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
                # The process's next answer would be for this text, not for the next one.
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
    # The time of its imports does not count for a text.
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
