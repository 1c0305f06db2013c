"""The front's description of the stack: the model, the versions, the limits of the context, the agent."""

import asyncio
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import omniagent
from local.causes import place_of
from local.packages import environment_of
from local.processes import ServiceError
from local.template import Function
from omniagent.errors import ConfigurationError
from omniagent.session.window import Limits
from omniagent.settings import Settings

TOLD = (
    "context_max_tokens",
    "context_max_turns",
    "lease_seconds",
    "max_message_chars",
    "max_steps",
    "name_sessions",
)
READ = ("openai_api", *TOLD)
SHOWN = ("id", "title", "description", "suggestions", "problem")
# Runs in the functions' environment: a project may need packages that only they have.
DESCRIBE = Path(__file__).with_name("describe_project.py")
READ_SECONDS = 30


class StackInfo:
    """Describes the stack as the chat function sees it, or the first function if there is no chat function.

    The project is read on the first call, and again after a change of its files.
    """

    def __init__(self, functions: Iterable[Function], environment: Mapping[str, str], *, built: bool = False) -> None:
        """Take the functions and the environment that they are started with."""
        by_name = {function.short_name: function for function in functions}
        self._chat = by_name.get("chat") or next(iter(by_name.values()))
        self._added = environment
        self._built = built
        self._read_of: int | None = None
        self._settings: Mapping[str, Any] = {}
        self._agents: list[Mapping[str, Any]] = []
        self._has_rule = False
        self._reading = asyncio.Lock()

    async def tell(self) -> dict[str, Any]:
        """Return the description."""
        await self._refresh()
        settings = self._settings
        return {
            "model": settings["model"],
            "api": settings["openai_api"],
            "versions": {"omniagent": omniagent.__version__, "python": platform.python_version()},
            "agents": [{name: agent.get(name) for name in SHOWN} for agent in self._agents],
            "has_rule": self._has_rule,
            **{name: settings[name] for name in TOLD},
            "window_tokens": Limits(settings["context_max_turns"], settings["context_max_tokens"]).full_tokens,
        }

    async def agent(self, agent_id: str = "") -> Mapping[str, Any]:
        """Return an agent's name, model, instructions and tools, or `error`: why the project cannot be read."""
        await self._refresh()
        return next((agent for agent in self._agents if agent.get("id") == agent_id), self._agents[0])

    @property
    def _environment(self) -> dict[str, str]:
        return {**self._chat.environment, **self._added}

    async def _refresh(self) -> None:
        async with self._reading:
            changed_at = max((file.stat().st_mtime_ns for file in self._chat.code.rglob("*.py")), default=0)
            if changed_at != self._read_of:
                await asyncio.to_thread(self._read)
                self._read_of = changed_at

    def _read(self) -> None:
        """Read the settings with the project's defaults, or without them if the project cannot be read."""
        try:
            # The last line: a project may print while it is imported.
            described: dict[str, Any] = json.loads(self._run_project().splitlines()[-1])
        except (IndexError, OSError, ServiceError, ValueError, subprocess.SubprocessError) as error:
            settings = self._of_the_environment()
            self._settings = {name: getattr(settings, name) for name in ("model", *READ)}
            said = str(getattr(error, "stderr", None) or error).strip()
            self._agents = [{"error": said, "problem": _problem(said)}]
        else:
            self._settings, self._agents = described["settings"], described["agents"]
            self._has_rule = described["has_rule"]

    def _run_project(self) -> str:
        if self._built:
            raise ServiceError(
                "The agent cannot be read from a `sam build` artifact, which may be for another machine."
            )
        python = environment_of(self._chat) / "bin" / "python"
        path = os.pathsep.join(str(folder) for folder in (self._chat.code, *self._chat.layers))
        return subprocess.run(
            # Bytecode is checked to the second, so it could hide a change right after another.
            [python, "-B", DESCRIBE, *READ],
            env={"PATH": os.environ.get("PATH", os.defpath), **self._environment, "PYTHONPATH": path},
            cwd=self._chat.code,
            capture_output=True,
            text=True,
            check=True,
            timeout=READ_SECONDS,
        ).stdout

    def _of_the_environment(self) -> Settings:
        try:
            return Settings.from_env(self._environment)
        except ConfigurationError:
            return Settings()


def _problem(error: str) -> dict[str, str]:
    """Return why a project cannot be read as the page shows it: the place, then what was raised and the line."""
    said = error.rpartition("\n")[2]
    if place := place_of(error):
        return {"title": place.title, "detail": f"{said}\n{place.text}".strip()}
    return {"title": "The project does not load", "detail": said}
