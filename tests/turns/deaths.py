"""A turn whose process dies at a chosen stage, in memory, and the processes that take it up."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from omniagent import Agent, Callbacks, Query, RunContext, Settings, tool
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers.llm_provider import ModelRequest, ModelText, ModelToolCall, ModelToolDelta, ModelToolStart
from omniagent.ai.providers.scripted import Beat
from omniagent.errors import OmniAgentError
from omniagent.messages import ToolPart
from omniagent.session.live import Change, SessionMessage
from omniagent.testing import ScriptedModel
from tests.fixtures.live_turns import answer_of
from tests.runner.processes import Call, Process, cancel_all_but
from tests.runner.sessions import Sessions

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


class Mortal(Process):
    """A process that dies where its world says."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self._world = world

    async def call(self, name: str, call: Call, unavailable: type[OmniAgentError], *args: Any) -> Any:
        if name == "write":
            change: Change = args[0]
            before, after = change.before.running, change.after.running
            name = "begin" if before is None else "end" if after is None else "take over"
            await self.hang_if_dead()
            await self._world.at(f"before {name}")
        done = await super().call(name, call, unavailable, *args)
        if name in {"begin", "end", "take over", "append"}:
            await self._world.at(f"after {name}")
            await self.hang_if_dead()
        return done


class World(Sessions):
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
        super().__init__(Settings(tick_seconds=tick_seconds, lease_seconds=max(LEASE_SECONDS, 2 * tick_seconds)))
        self.stage, self.moment = stage, moment
        self.deaths_left, self.deaths = deaths, 0
        self.moments = 0
        self.runs: list[str] = []
        """The call ids of the tool's runs."""
        self.retry_safe = retry_safe
        self.model = ScriptedModel(default=self._answer)
        self.process = Mortal(self)
        self._died = asyncio.Event()
        self._living = asyncio.all_tasks()
        self.agent = self._new_agent()

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
            await self.process.hang_if_dead()

    async def is_written(self, text: bytes) -> bool:
        """Whether the turn's journal has this text."""
        turn = (await self.head()).turn
        assert turn is not None
        return any(text in each.lines for each in await self.registry.read(self.session().key, turn.journal))

    def worker(self) -> TurnOperator:
        """A runner in a process of its own."""
        self.process = Mortal(self)
        return self.runner(self.model, agent=self.agent, session=self.process.session, registry=self.process.registry)

    async def ask(self) -> None:
        """Send the message. Its process may die."""
        await self._until_death_or_end(self._asked())

    async def finish(self) -> SessionMessage:
        """Let other processes take up what is left, until there is nothing. They may die as well."""
        while (await self.head()).turn is not None:
            await self._until_death_or_end(self._taken_up())
        return await self.answer()

    async def answer(self) -> SessionMessage:
        answer = await answer_of(self.session(), 1)
        assert answer is not None
        return answer

    async def _asked(self) -> None:
        stream = await self.worker().start(QUERY)
        await stream.ended()

    async def _taken_up(self) -> None:
        stream = await self.worker().take_up()
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
        await cancel_all_but(self._living)

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
