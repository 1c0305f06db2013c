"""A turn whose process dies at a chosen stage, in memory, and the processes that take it up."""

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from omniagent import Agent, Callbacks, InMemorySessionManager, Query, RunContext, SessionManager, Settings, tool
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers.llm_provider import ModelRequest, ModelText, ModelToolCall, ModelToolDelta, ModelToolStart
from omniagent.ai.providers.scripted import Beat
from omniagent.messages import ToolPart
from omniagent.session.live import Change, SessionMessage
from omniagent.testing import InMemoryStore, MemoryRegistry, ScriptedModel
from omniagent.turns.registry import Chunk
from tests.fixtures.live_turns import answer_of

LEASE_SECONDS = 10.0
QUERY = Query("Look it up", "m1")
STEPS = 2
"""How many model calls an undisturbed turn makes."""


class Stage(asyncio.Event):
    """A place in a script where the process may die."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__()
        self._world = world
        self._name = name

    async def wait(self) -> bool:  # type: ignore[override]  # typeshed says Literal[True]
        await self._world.at(self._name)
        return True


class Process:
    """One process. Once it is dead, none of its writes has an effect."""

    def __init__(self) -> None:
        self.grave: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_dead = False

    async def check(self) -> None:
        if self.is_dead:
            await asyncio.shield(self.grave)


class MortalSession(InMemorySessionManager):
    def __init__(self, world: "World", process: Process) -> None:
        super().__init__("ada", "chat", store=world.store, settings=world.settings)
        self._world, self._process = world, process
        self.now = world.now  # type: ignore[method-assign]

    async def write(self, change: Change) -> bool:
        await self._process.check()
        before, after = change.before.running, change.after.running
        name = "begin" if before is None else "end" if after is None else "take over"
        await self._world.at(f"before {name}")
        await self._process.check()
        is_written = await super().write(change)
        await self._world.at(f"after {name}")
        await self._process.check()
        return is_written


class MortalRegistry(MemoryRegistry):
    def __init__(self, world: "World", process: Process) -> None:
        super().__init__()
        self._world, self._process, self._shared = world, process, world.registry
        for name in ("read", "signal", "signals", "count_reader", "erase"):
            setattr(self, name, getattr(world.registry, name))

    async def append(self, session: str, journal: str, chunk: Chunk) -> bool:
        await self._process.check()
        is_ours = await self._shared.append(session, journal, chunk)
        await self._world.at("after append")
        await self._process.check()
        return is_ours


class World:
    """One session and its processes. Whoever reaches the stage, or the moment of this number, dies there."""

    def __init__(
        self,
        stage: str = "",
        moment: int = 0,
        *,
        deaths: int = 1,
        retry_safe: bool = False,
        tick_seconds: float = 0.005,
    ) -> None:
        self.stage, self.moment = stage, moment
        self.deaths_left, self.deaths = deaths, 0
        self.moments = 0
        self.store, self.registry = InMemoryStore(), MemoryRegistry()
        self.settings = Settings(
            tick_seconds=tick_seconds, lease_seconds=max(LEASE_SECONDS, 2 * tick_seconds), name_sessions=False
        )
        self.passed = timedelta()
        self.runs: list[str] = []
        """The call ids of the tool's runs."""
        self.retry_safe = retry_safe
        self.model = ScriptedModel(default=self._answer)
        self.process = Process()
        self._died = asyncio.Event()
        self._living = asyncio.all_tasks()
        self.agent = self._new_agent()

    def now(self) -> datetime:
        return SessionManager.now() + self.passed

    async def at(self, name: str) -> None:
        """Stop here for good if this is the stage."""
        if name != "before begin":
            self.moments += 1
        is_here = name == self.stage or (self.moment and self.moments == self.moment)
        if is_here and self.deaths_left and not self.process.is_dead:
            self.deaths_left -= 1
            self.deaths += 1
            self.process.is_dead = True
            self._died.set()
            await asyncio.shield(self.process.grave)

    @property
    def session(self) -> MortalSession:
        """The session, as a new process sees it."""
        return MortalSession(self, Process())

    async def is_written(self, text: bytes) -> bool:
        """Whether the turn's journal has this text."""
        head = await self.session.head()
        assert head is not None
        assert head.turn is not None
        return any(text in each.lines for each in await self.registry.read(self.session.key, head.turn.journal))

    def runner(self) -> TurnOperator:
        self.process = Process()
        session, registry = MortalSession(self, self.process), MortalRegistry(self, self.process)
        return TurnOperator(self.agent, session, provider=self.model, registry=registry)

    async def ask(self) -> None:
        """Send the message. Its process may die."""
        await self._until_death_or_end(self._asked())

    async def finish(self) -> SessionMessage:
        """Let other processes take up what is left, until there is nothing. They may die as well."""
        while (head := await self.session.head()) is not None and head.turn is not None:
            await self._until_death_or_end(self._taken_up())
        return await self.answer()

    async def answer(self) -> SessionMessage:
        answer = await answer_of(self.session, 1)
        assert answer is not None
        return answer

    async def _asked(self) -> None:
        stream = await self.runner().start(QUERY)
        await stream.ended()

    async def _taken_up(self) -> None:
        stream = await self.runner().take_up()
        if stream is not None:
            await stream.ended()

    async def _until_death_or_end(self, work: Any) -> None:
        self._died.clear()
        task, died = asyncio.create_task(work), asyncio.create_task(self._died.wait())
        async with asyncio.timeout(60):
            await asyncio.wait([task, died], return_when=asyncio.FIRST_COMPLETED)
        if self._died.is_set():
            self.passed += timedelta(seconds=self.settings.lease_seconds + 1)
        else:
            task.result()
        while left := asyncio.all_tasks() - self._living - {asyncio.current_task()}:
            for each in left:
                each.cancel()
            await asyncio.wait(left, timeout=0.01)

    def _new_agent(self) -> Agent:
        @tool(retry_safe=self.retry_safe)
        async def work(context: RunContext, n: int) -> str:
            """Work."""
            self.runs.append(context.call_id or "")
            await self.at("in a tool")
            return f"worked {n}"

        async def before(_context: RunContext[Any], _name: str, _input: Any) -> None:
            await self.at("before a tool")

        async def after(_context: RunContext[Any], _name: str, _output: Any) -> None:
            await self.at("after a tool")

        return Agent("helper", "", [work], callbacks=Callbacks(on_tool_start=before, on_tool_end=after))

    def _answer(self, request: ModelRequest) -> list[Beat]:
        done = [part for part in request.messages[-1].parts if isinstance(part, ToolPart)]
        return list(self._last_step() if done else self._first_step())

    def _first_step(self) -> Iterator[Beat]:
        yield Stage(self, "first token")
        yield ModelText("Let me ")
        yield Stage(self, "mid text")
        yield ModelText("look.")
        yield ModelToolStart("c1", "work")
        yield ModelToolDelta("c1", '{"n":')
        yield Stage(self, "mid arguments")
        yield ModelToolDelta("c1", " 1}")
        yield ModelToolCall("c1", "work", '{"n": 1}')

    def _last_step(self) -> Iterator[Beat]:
        yield Stage(self, "between steps")
        yield "All done, "
        yield Stage(self, "in the last text")
        yield "as you see."
