"""Whichever call of the store or the registry goes wrong, and however: the session works afterwards."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from omniagent import Query, tool
from omniagent.ai.operator import TurnOperator
from omniagent.errors import NotFound
from omniagent.messages import StepPart, TextPart, ToolPart
from omniagent.protocol import sse
from omniagent.testing import ScriptedModel, ToolCall
from tests.fixtures.conversation import QUICK, read
from tests.fixtures.live_turns import answer_of, begin_turn, end_turn
from tests.runner.processes import FaultyProcess, Process
from tests.runner.sessions import Sessions, other_tasks, parts_of, until

SETTINGS = replace(QUICK, tick_seconds=0.005, context_max_turns=1)
MOST_CALLS = 100


class World(Sessions):
    """A session with two turns, and one process that is about to go wrong."""

    def __init__(self, at: int, how: str) -> None:
        super().__init__(SETTINGS)
        self.process = FaultyProcess(self, at=at, how=how)
        self.tool_runs = 0
        self.model = ScriptedModel(default=self._answer)
        self.streamed = b""

    def operator(self, process: Process | None = None) -> TurnOperator:
        @tool
        async def work() -> str:
            """Work."""
            self.tool_runs += 1
            return "worked"

        process = process or Process(self)
        return self.runner(self.model, work, session=process.session, registry=process.registry)

    async def converse(self) -> None:
        call = ToolPart(call_id="call", name="work", input={}, output="worked", done=True)
        for message_id in ("m1", "m2"):
            turn = await begin_turn(self.session(), message_id=message_id)
            await end_turn(self.session(), turn, parts=[StepPart(), call, StepPart(), TextPart(text="Done.")])

    async def go_wrong(self, verb: str) -> None:
        """Do something in the process that goes wrong. Whatever it raises, it ends."""
        self.process.caller = asyncio.create_task(self._do(verb, self.operator(self.process)))
        async with asyncio.timeout(60):
            await asyncio.gather(self.process.caller, return_exceptions=True)

    async def _do(self, verb: str, runner: TurnOperator) -> None:
        if verb == "erase":
            await runner.erase()
            return
        stream = await runner.start(QUERIES[verb])
        self.streamed = await read(stream)
        await stream.ended()

    @staticmethod
    def _answer(request: Any) -> Any:
        return "Done." if any(part.type == "tool" for part in request.messages[-1].parts) else ToolCall("work")


QUERIES = {"send": Query("Go on", "m3"), "regenerate": Query(message_id="m2", regenerate=True)}


@pytest.mark.parametrize("how", ["refused", "answer lost", "cancelled before", "cancelled after"])
@pytest.mark.parametrize("verb", [*QUERIES, "erase"])
async def test_whatever_goes_wrong_everything_ends_and_the_session_works(verb: str, how: str) -> None:
    for at in range(1, MOST_CALLS):
        world = World(at, how)
        await world.converse()
        before = other_tasks()
        await world.go_wrong(verb)
        where = f"{how} at {at}: {world.process.went_wrong_in}"
        await check_ended(world, before, where)
        await check_stream(world, where)
        await check_works(world, where)
        if world.process.went_wrong_in is None:
            assert at > 1
            return
    raise AssertionError("it never ends")


async def check_ended(world: World, before: set[Any], where: str) -> None:
    async def is_quiet() -> bool:
        return not len(world.store.open_turns) and other_tasks() <= before

    try:
        await until(is_quiet)
    except TimeoutError:
        pytest.fail(f"{where}: left behind {other_tasks() - before}")


async def check_stream(world: World, where: str) -> None:
    """P1: whoever saw `finish` finds the answer in the store as it was shown."""
    seen = list(sse.decode(world.streamed))
    finished = [event for event in seen if event["type"] == "finish"]
    if finished:
        number = finished[-1]["messageMetadata"]["turnNumber"]
        answer = await answer_of(world.session(), number)
        assert answer is not None, where
        assert parts_of(world.streamed) == answer.parts, where


async def check_works(world: World, where: str) -> None:
    """After the lease at most, the same message is answered once, and so is another one."""
    world.pass_by()
    session = world.store.sessions.get(world.session().key)
    if session is not None and session.head.is_erased:  # a deletion that was cut off: the same request again goes on
        assert await world.operator().erase_session(), where
    stored = (await world.session().load(Query("Go on", "m3"))).earlier
    answer = await answer_of(world.session(), stored.turn_number) if stored else None
    # A turn that could not be stored is continued, and one that was closed early goes on: its tool is not run again.
    # After a regeneration that is continued, the message has a turn of its own.
    continued = (await world.head()).running
    has_run = answer is not None and any(isinstance(part, ToolPart) and part.may_have_run for part in answer.parts)
    runs = world.tool_runs + (not has_run) if continued is None else 1 + (continued.message_id != "m3")
    result = await world.operator().run(Query("Go on", "m3"))
    assert (result.status, result.text) == ("complete", "Done."), where
    assert world.tool_runs == runs, where
    assert (await world.operator().run(Query("And on", "m4"))).status == "complete", where
    await world.store.open_turns.finish()
    numbers = [(m.turn_number, m.role) for m in await world.operator().history()]
    assert numbers == [(n, role) for n in range(1, len(numbers) // 2 + 1) for role in ("user", "assistant")], where
    assert await world.are_free(), where
    with pytest.raises(NotFound):
        await world.operator().run(Query(message_id="unheard-of", regenerate=True))
