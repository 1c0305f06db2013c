"""A turn whose process dies at a chosen stage, in memory: what another process makes of it."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from omniagent import Agent, AnswerStream, Budget, Callbacks, Query, RunContext, Settings, Tool, TurnHooks, tool
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers.llm_provider import (
    ModelReasoning,
    ModelReasoningDone,
    ModelRequest,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
)
from omniagent.ai.providers.scripted import Beat
from omniagent.errors import OmniAgentError, ToolError
from omniagent.messages import ToolPart
from omniagent.session.manager import SessionManager, SessionMessage
from omniagent.testing import InMemoryStore, MemoryCounter, MemoryRegistry, ScriptedModel
from tests.fixtures.conversation import Clock
from tests.runner.processes import Call, Process
from tests.runner.sessions import QUICK

LEASE_SECONDS = 10.0
QUERY = Query("Look it up", "m1")
NEVER = 3600.0
"""A tick that never comes: only what must be in the log is there."""
GRAVES: list["asyncio.Future[None]"] = []
"""What the dead wait for. A task that waits for something nobody holds would be collected in the middle of a test."""


class Stage(asyncio.Event):
    """A place in a script where the process may die."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__()
        self._world = world
        self._name = name

    async def wait(self) -> bool:  # type: ignore[override]  # typeshed says Literal[True]
        await self._world.at(self._name)
        return True


class MortalProcess(Process):
    """Stops for good at a stage that is named after a call of the store or the registry."""

    def __init__(self, world: "World") -> None:
        super().__init__(world.store, world.registry, world.settings)
        self._world = world
        self.thawed = asyncio.Event()
        self.thawed.set()

    async def call(self, name: str, call: Call, unavailable: type[OmniAgentError]) -> Any:
        await self.thawed.wait()
        await self._world.at(f"before {name}", self)
        result = await super().call(name, call, unavailable)
        await self._world.at(f"after {name}", self)
        return result


class World:
    """One session and its processes. The first one dies at `stage`; a tick of it can be made never to come."""

    def __init__(self, stage: str = "", *, tick_seconds: float = 0.005, retry_safe: bool = False) -> None:
        self.clock = Clock()
        self.store = InMemoryStore()
        self.registry = MemoryRegistry(lease_seconds=LEASE_SECONDS, clock=self.clock)
        lease_seconds = max(LEASE_SECONDS, 2 * tick_seconds)  # the registry has its own
        self.settings: Settings = replace(
            QUICK, tick_seconds=tick_seconds, lease_seconds=lease_seconds, name_sessions=False
        )
        self.stage = stage
        self.deaths_left = 1
        self.grace_seconds = 30.0
        self.steps = 2
        """How many model calls an undisturbed turn makes."""
        self.budget: Budget | None = None
        self.counter: MemoryCounter | None = None
        self.arguments = '{"n": 1}'
        self.runs: list[str] = []
        """The call ids of the tool's runs."""
        self.model = ScriptedModel(default=self._answer)
        self.begun: list[tuple[str, int]] = []
        """The processes that somebody is to look after, as each one has said."""
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()
        """Set: whoever stopped at the stage goes on."""
        self.process = MortalProcess(self)
        self.agent = self._agent(retry_safe)

    async def at(self, name: str, process: Process | None = None) -> None:
        """Stop here for good if this is the stage. The dead do nothing any more."""
        if process is not None and process.is_dead:
            GRAVES.append(asyncio.get_running_loop().create_future())
            await GRAVES[-1]
        if name == self.stage and self.deaths_left:
            self.deaths_left -= 1
            self.reached.set()
            await self.goes_on.wait()

    def runner(self, process: Process | None = None) -> TurnOperator:
        process = process or self.process
        hooks = TurnHooks(grace_seconds=self.grace_seconds, on_begin=self._note_begin)
        return TurnOperator(
            self.agent,
            process.session,
            provider=self.model,
            registry=process.registry,
            hooks=hooks,
            budget=self.budget,
            counter=self.counter,
        )

    async def _note_begin(self, turn_id: str, attempt: int) -> None:
        self.begun.append((turn_id, attempt))

    async def die(self, query: Query = QUERY) -> None:
        """Ask, and kill the process at its stage."""
        asking = asyncio.create_task(self.runner().run(query))
        await self.killed(asking)

    async def killed(self, *tasks: "asyncio.Task[Any]") -> None:
        async with asyncio.timeout(60):
            await self.reached.wait()
        if self.stage == "before finish_turn":
            while (await self.log()).count(b': {"step":') < self.steps:  # logged beside the store  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        elif self.settings.tick_seconds != NEVER:
            await self._logged()
        else:
            await asyncio.sleep(0)  # what is logged at once is logged
        self.reached.clear()
        self.process.is_dead = True
        # What hangs in a model or in a tool must not go on in the name of the dead.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if task in tasks or task.get_name() in ("answer", "lease-keeper") or task.get_name().startswith("turn "):
                task.cancel()
        self.clock.pass_by(LEASE_SECONDS)

    async def continued(self) -> AnswerStream | None:
        """Let another process continue the turn."""
        self.process = MortalProcess(self)
        return await self.runner().continue_turn()

    async def finished(self) -> SessionMessage:
        """Let another process finish the turn, and return the answer."""
        stream = await self.continued()
        assert stream is not None
        result = await stream.result()
        await stream.ended()
        assert result.status == "complete"
        return await self.answer()

    async def answer(self) -> SessionMessage:
        answer = await self.session.answer(1)
        assert answer is not None
        return answer

    @property
    def session(self) -> SessionManager:
        return Process(self.store, self.registry, self.settings).session

    @property
    def turn_id(self) -> str:
        """The turn that has begun last."""
        turn_id = self.store.sessions[self.session.key].head.latest_turn_id
        assert turn_id is not None
        return turn_id

    async def log(self) -> bytes:
        return b"".join(frames for _, frames in await self.registry.read(self.session.key, self.turn_id))

    async def _logged(self) -> None:
        """Wait for two ticks: the first may have begun before the stage was reached. None comes after its end."""
        for _ in range(2):
            before = await self.registry.running(self.session.key)
            while before is not None and not self.stage.endswith(("claim", "finish_turn", "release")):
                self.clock.pass_by(0.001)
                await asyncio.sleep(0.001)
                now = await self.registry.running(self.session.key)
                if now is None or now.lease_until != before.lease_until:
                    break

    def _agent(self, retry_safe: bool) -> Agent:
        @tool(retry_safe=retry_safe)
        async def work(context: RunContext, n: int) -> str:
            """Work."""
            self.runs.append(context.call_id or "")
            await self.at("in a tool")
            if n < 0:
                raise ToolError("n: less than zero, see row 42")
            return f"worked {n}"

        async def before(_context: RunContext[Any], _name: str, _input: Any) -> None:
            await self.at("before a tool")

        async def after(_context: RunContext[Any], _name: str, _output: Any) -> None:
            await self.at("after a tool")

        tools: list[Tool] = [work]
        return Agent("helper", "", tools, callbacks=Callbacks(on_tool_start=before, on_tool_end=after))

    def _answer(self, request: ModelRequest) -> list[Beat]:
        done = [part for part in request.messages[-1].parts if isinstance(part, ToolPart)]
        return list(self._last_step() if done else self._first_step())

    def _first_step(self) -> Iterator[Beat]:
        yield Stage(self, "first token")
        yield ModelReasoning("Hm.")
        yield ModelReasoningDone({"id": "r1", "encrypted_content": "secret"})
        yield ModelText("Let me ")
        yield Stage(self, "mid text")
        yield ModelText("look.")
        yield ModelToolStart("c1", "work")
        yield ModelToolDelta("c1", self.arguments[:5])
        yield Stage(self, "mid arguments")
        yield ModelToolDelta("c1", self.arguments[5:])
        yield ModelToolCall("c1", "work", self.arguments)

    def _last_step(self) -> Iterator[Beat]:
        yield Stage(self, "between steps")
        yield "All done, "
        yield Stage(self, "in the last text")
        yield "as you see."
