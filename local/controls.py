"""What the playground can ask of the stack itself: its agent, its model, its processes, and to break something."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from local.emulator import Emulator, Process
from local.front import LocalRequest, LocalRoute
from local.info import StackInfo
from local.model_choice import Choice, TabModels
from local.processes import ServiceError

FREEZE_SECONDS = 60.0
"""Longer than a lease and than the page waits for a silent stream: it resumes, and another process takes the turn over.
The frozen one finds out when it wakes."""
CUT_SECONDS = 6.0
SERVICES = {"mongodb": "MongoDB", "model": "The model"}


class Running(Protocol):
    """A service in its own process."""

    @property
    def pid(self) -> int: ...


class Controls:
    """The local routes of the front."""

    def __init__(
        self,
        emulator: Emulator,
        info: StackInfo,
        models: TabModels,
        services: Mapping[str, Running | None],
        journal: Callable[[str, str], dict[str, Any] | None],
    ) -> None:
        """Take what can be shown and broken. A service that is None runs outside this stack.

        `journal` reads a user's session. It blocks.
        """
        self._journal = journal
        self._emulator = emulator
        self._info = info
        self._models = models
        self._services = services

    @property
    def routes(self) -> dict[str, LocalRoute]:
        """The routes by method and path."""
        return {
            "GET /local/info": self._tell_info,
            "GET /local/agent": self._agent,
            "GET /local/models": self._tell_models,
            "POST /local/models": self._choose_model,
            "GET /local/processes": self._tell_processes,
            "POST /local/break": self._break,
        }

    async def _tell_info(self, request: LocalRequest) -> Any:
        """Describe the stack as a tab has it: with the model that it has chosen, for which a process is made ready."""
        told = await self._info.tell()
        if choice := request.choice:
            self._emulator.warm(self._models.use(choice))
            own = (await self._info.agent()).get("own_model")
            return {**told, "offline": False, "model": own or choice.name}
        offline = self._models.has_offline
        return {**told, "offline": offline, **({"model": "offline"} if offline else {})}

    async def _agent(self, request: LocalRequest) -> Any:
        """Describe an agent with the model that answers the tab."""
        agent = await self._info.agent(request.query.get("agent", ""))
        if request.choice is None:
            return {**agent, "offline": self._models.has_offline}
        return {**agent, "model": agent.get("own_model") or request.choice.name}

    async def _tell_models(self, request: LocalRequest) -> Any:
        own = (await self._info.agent()).get("own_model")
        return {**await self._models.tell(request.choice), "agent_model": own}

    async def _choose_model(self, request: LocalRequest) -> Any:
        """Take a tab's new choice, null for the stack's own model, in place of the one that the request carries."""
        choice = None if request.body is None else Choice.read(request.body)
        if request.choice:
            self._models.forget(request.choice)
        return await self._tell_info(replace(request, choice=choice))

    async def _tell_processes(self, request: LocalRequest) -> Any:
        session = request.query.get("session_id", "")
        journal = await asyncio.to_thread(self._journal, request.user, session) if session else None
        return {
            "journal": journal,
            "processes": [
                {
                    "function": process.function,
                    "pid": process.pid,
                    "state": process.state,
                    "here": _concerns(process, session),
                }
                for process in self._emulator.processes()
            ],
            "services": [name for name, service in self._services.items() if service],
        }

    async def _break(self, request: LocalRequest) -> Any:
        body = request.body if isinstance(request.body, dict) else {}
        what, session = str(body.get("what")), str(body.get("session_id") or "")
        if what in {"kill", "freeze"}:
            return {"pids": self._break_function(what, session)}
        return {"pids": [self._cut(what)], "seconds": CUT_SECONDS}

    def _break_function(self, how: str, session: str) -> list[int]:
        """Kill or freeze the processes that answer a session now."""
        found = [process for process in self._emulator.running() if _concerns(process, session)]
        if not found:
            raise ValueError("Nothing is being answered now: ask something first.")
        for process in found:
            if how == "kill":
                self._emulator.kill(process.pid)
            else:
                self._emulator.pause(process.pid, FREEZE_SECONDS)
        return [process.pid for process in found]

    def _cut(self, name: str) -> int:
        """Let a service be silent for a while, as behind a broken network."""
        service = self._services.get(name)
        if service is None:
            raise ValueError(f"{SERVICES.get(name, name)} runs outside this stack.")
        try:
            pid = service.pid
        except ServiceError as error:
            raise ValueError(str(error)) from None
        os.kill(pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(CUT_SECONDS, _resume, pid)
        return pid


def _resume(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _concerns(process: Process, session: str) -> bool:
    """Whether a process runs an invocation for a session: its event names it, in the path or in the body."""
    return bool(session) and process.request_id is not None and json.dumps(session)[1:-1].encode() in process.event
