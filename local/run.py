"""`python -m local run`: the whole product, until Ctrl-C."""

import argparse
import asyncio
import json
import logging
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import httpx

from local.log_lines import DIM, LogLines
from local.places import command
from local.processes import ServiceError
from local.reload import Reload
from local.stack import DATA, Stack, StackOptions, local_stack
from local.template import TEMPLATE

DEFAULT_PORT = 8000
DEFAULTS = {"DOCS_ENABLED": "true", "NAME_SESSIONS": "true"}
"""Settings of a local stack. The caller's environment takes precedence."""
AGENT = "functions/agent.py"
HIGHEST_PORT = 65535
# A readable pace.
TOKENS_PER_SECOND = 40.0
CHECK_SECONDS = 0.5
# What a process of the chat function does before it is kept for the next reader: a resume of nothing.
WARM_UP = json.dumps(
    {
        "version": "2.0",
        "rawPath": "/chat/warm-up/stream",
        "rawQueryString": "",
        "headers": {"host": "localhost"},
        "requestContext": {"http": {"method": "GET", "path": "/chat/warm-up/stream", "sourceIp": "127.0.0.1"}},
        "isBase64Encoded": False,
    }
).encode()
WARM_UP_SECONDS = 90.0
KILLED = 130


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("run", help="run the whole product, with a playground in the browser")
    parser.add_argument("--port", default=os.environ.get("PORT") or str(DEFAULT_PORT), help="default: $PORT, else 8000")
    parser.add_argument("--data", type=Path, default=DATA, help="folder that keeps the data between runs")
    parser.add_argument(
        "--template", type=Path, default=TEMPLATE, help="another template, such as .build/here/template.yaml"
    )
    parser.add_argument("--freeze", action="store_true", help="freeze functions between invocations, as Lambda does")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    lines = LogLines(sys.stdout)
    options = StackOptions.from_environment(
        template=arguments.template,
        folder=arguments.data,
        auth="none",
        port=_port(arguments.port),
        environment=DEFAULTS,
        tokens_per_second=float(os.environ.get("OFFLINE_MODEL_TOKENS_PER_SECOND") or TOKENS_PER_SECOND),
        emulator={"on_line": lines.print, "freeze": arguments.freeze, "spare": {"chat": WARM_UP}},
        on_ready=lambda name, seconds: _say(f"  {name:<14} {lines.paint(f'ready after {seconds:.1f} s', DIM)}"),
    )
    return asyncio.run(_Command(options).run())


class _Command:
    """One run: Ctrl-C ends it in order, a second one at once."""

    def __init__(self, options: StackOptions) -> None:
        self._options = options
        self._stack: Stack | None = None
        self._serving: asyncio.Task[None] | None = None
        self._ending = False

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._serving = asyncio.create_task(self._serve())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end)
        try:
            await self._serving
        except asyncio.CancelledError:
            _say("Stopped.")
        return 0

    async def _serve(self) -> None:
        """Serve until cancelled. A service that ends by itself is an error."""
        began = time.monotonic()
        _say("Starting OmniAgent ...")
        async with local_stack(self._options) as stack:
            self._stack = stack
            source = Reload(stack.emulator, stack.functions)
            warming = time.monotonic()
            broken = await _warm_up(stack.url)
            if not broken:
                self._options.on_ready("functions", time.monotonic() - warming)
            _say(_ready_block(self._options, stack.url, time.monotonic() - began))
            _complain(broken)
            while True:
                stack.check()
                await asyncio.sleep(CHECK_SECONDS)
                if changed := source.follow():
                    _say(f"{', '.join(map(_from_here, changed))} changed: restarting the functions.")
                    _complain(await _warm_up(stack.url))
                    stack.changed()

    def _end(self) -> None:
        if self._ending or self._serving is None:
            if self._stack:
                self._stack.kill()
            # Services that are still starting are tied to this process and end with it.
            os._exit(KILLED)
        self._ending = True
        _say("\nStopping ... (press Ctrl-C again to stop at once)")
        self._serving.cancel()


async def _warm_up(url: str) -> list[str]:
    """Start a process of each function that has a URL, and return the names of those that fail.

    The project is read as well, so that the page knows its agent from the first look on.
    """
    paths = {"chat": "/chat/warm-up/stream", "sessions": "/sessions?limit=1", "project": "/local/info"}
    async with httpx.AsyncClient(base_url=url, timeout=WARM_UP_SECONDS, trust_env=False) as http:
        answers = await asyncio.gather(*(http.get(path) for path in paths.values()))
    return [name for name, answer in zip(paths, answers, strict=True) if answer.is_server_error]


def _complain(broken: list[str]) -> None:
    for function in broken:
        _say(f"The {function} function failed; see its log above. It restarts when you save a fix.")


def _ready_block(options: StackOptions, url: str, seconds: float) -> str:
    question = shlex.quote('{"query": "What is 21 * 2?"}')
    data = _from_here(options.folder) if options.folder else "not kept"
    port = url.rpartition(":")[2]
    at_port = "" if port == str(DEFAULT_PORT) else f"PORT={port} "
    return f"""
OmniAgent is ready after {seconds:.1f} s.

  Playground  {url}/
  Chat        {url}/chat (POST, streams)
  Sessions    {url}/sessions (all routes: {url}/docs and {url}/chat/docs)
  Try it      curl -N {url}/chat -H 'content-type: application/json' -d {question}
  Terminal    {at_port}{command("chat")}
  Model       {_model(options)}
  Agent       {AGENT}: a change is taken up at once
  Data        {data} (delete it to start empty)
  Stop        Ctrl-C
"""


def _model(options: StackOptions) -> str:
    if options.offline:
        run = command("run")
        return f"offline model with canned answers; for a real one: OPENAI_API_KEY=... or ANTHROPIC_API_KEY=... {run}"
    name = options.environment.get("OMNIAGENT_MODEL", "the project's model")
    if name.startswith("anthropic/"):
        return f"{name} at {options.anthropic_base_url or 'Anthropic'}"
    return f"{name} at {options.openai_base_url or 'OpenAI'}"


def _port(text: str) -> int:
    if text.isdigit() and int(text) <= HIGHEST_PORT:
        return int(text)
    raise ServiceError(f"PORT must be a number up to {HIGHEST_PORT}, not {text!r}.")


def _from_here(path: Path) -> str:
    return os.path.relpath(path)


def _say(text: str) -> None:
    print(text, flush=True)
