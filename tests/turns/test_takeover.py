"""What becomes of a turn whose process died: who goes on with it, and when it is closed instead."""

import asyncio
import gc
from datetime import timedelta

import pytest
from pydantic import BaseModel

from omniagent import Agent, InMemorySessionManager, Query
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers.scripted import Beat
from omniagent.app.sweep import Sweeper
from omniagent.aws.turn_table import UNREADABLE
from omniagent.errors import StorageRejected
from omniagent.messages import TextPart
from omniagent.protocol import sse
from omniagent.protocol.events import DataChunk
from omniagent.session.live import Change
from omniagent.session.manager import SessionAddress
from omniagent.testing import InMemoryStore, MemoryRegistry, ScriptedModel
from omniagent.turns.engine import turn
from omniagent.turns.watch.takeover import MAX_ATTEMPTS
from tests.fixtures.conversation import QUICK
from tests.fixtures.live_turns import answer_of, begin_turn, journal
from tests.runner.sessions import until
from tests.turns.deaths import QUERY, Stage, World

DONE = "Let me look.All done, as you see."


class Found(BaseModel):
    place: str


async def test_a_turn_that_dies_between_two_attempts_is_told_what_to_correct() -> None:
    world = World("repair")

    async def repair(_: object) -> list[Beat]:
        await until(lambda: world.is_written(b"withdrawn"))
        return [Stage(world, "repair")]

    good = '{"place": "here"}'
    world.agent = Agent("finder", "", output=Found)
    world.model = ScriptedModel("no JSON", repair, good)
    await world.ask()
    answer = await world.finish()
    assert (answer.status, answer.text, answer.metadata["output"]) == ("complete", good, {"place": "here"})
    second, third = ([message.text for message in request.messages] for request in world.model.requests[1:])
    assert second == third
    assert third[-2] == "no JSON"


async def test_the_models_of_both_processes_are_named() -> None:
    world = World("between steps")
    await world.ask()
    world.model = ScriptedModel("Done.", model="second")
    answer = await world.finish()
    assert answer.metadata["model"] == "second"
    assert answer.metadata["models"] == ["scripted", "second"]


@pytest.mark.parametrize("way", ["resume", "retry", "next message", "sweep"])
async def test_whoever_comes_next_finishes_a_dead_turn(way: str) -> None:
    world = World("between steps")
    await world.ask()
    runner = world.worker()
    assert await runner.has_work()
    if way == "resume":
        stream = await runner.resume()
        assert stream is not None
        assert b"".join([frame async for frame in stream.sse()]).endswith(sse.DONE)
        await stream.ended()
    elif way == "retry":
        assert (await runner.run(QUERY)).text == DONE
    elif way == "next message":
        stream = await runner.start(Query("And then?", "m2"))  # in line behind it, not refused
        assert (await stream.result()).message.turn_number == 2
        await stream.ended()
    else:

        async def open_runner(_: SessionAddress) -> object:
            return runner

        world.store.sessions[world.session().key].due = world.session().now().replace(year=2000)
        sweeper = Sweeper(world.store, open_runner, world.settings)  # type: ignore[arg-type]
        await sweeper.sweep()

        async def has_ended() -> bool:
            return await answer_of(world.session(), 1) is not None

        await until(has_ended)
    answer = await world.answer()
    assert (answer.status, answer.text) == ("complete", DONE)
    assert len(world.runs) == (2 if way == "next message" else 1)
    assert not await runner.has_work()


async def test_a_turn_that_a_fault_of_the_engine_ends_is_finished_by_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a fault of ours")

    world = World()
    with monkeypatch.context() as broken:
        broken.setattr(turn, "start_summary", fail)
        stream = await world.worker().start(QUERY)
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await stream.result()
        await stream.ended()
        del stream
        gc.collect()  # asyncio logs the fault now, and not in the middle of another test
    world.passed += timedelta(seconds=world.settings.lease_seconds + 1)
    await asyncio.sleep(10 * world.settings.tick_seconds)  # a keeper that is left behind would write a heartbeat
    assert await world.worker().has_work()
    assert (await world.finish()).text == DONE


async def test_a_dead_turn_that_is_stopped_is_closed_with_its_text() -> None:
    world = World("between steps")
    await world.ask()
    assert await world.worker().stop()
    answer = await world.answer()
    assert answer.status == "cancelled"
    assert [part.text for part in answer.parts if isinstance(part, TextPart)] == ["Let me look."]
    assert len(world.model.requests) == 2


async def test_an_interrupted_answer_that_is_reduced_raises_the_alarm(caplog: pytest.LogCaptureFixture) -> None:
    """InterruptedTurns counts `dead turn closed` with this status."""

    class Choosy(InMemorySessionManager):
        async def write(self, change: Change) -> bool:
            if any(part.type == "data" for answer in change.inserted for part in answer.parts):
                raise StorageRejected
            return await super().write(change)

    store, registry = InMemoryStore(), MemoryRegistry()
    session = Choosy("ada", "chat", store=store, settings=QUICK)
    lost = await begin_turn(session, is_dead=True)
    await journal(registry, session, lost, [DataChunk("note", 1), UNREADABLE])
    runner = TurnOperator(Agent("helper", ""), session, provider=ScriptedModel(), registry=registry)
    assert await runner.take_up() is None
    [closed] = [record for record in caplog.records if record.message == "dead turn closed"]
    assert closed.__dict__["status"] == "interrupted"
    answer = await answer_of(session, 1)
    assert answer is not None
    assert answer.parts == []


async def test_a_turn_that_keeps_killing_its_processes_is_closed_as_interrupted() -> None:
    world = World("between steps", deaths=100)
    await world.ask()
    answer = await world.finish()
    assert (answer.status, world.deaths) == ("interrupted", MAX_ATTEMPTS + 1)
    assert not await world.worker().has_work()


async def test_of_processes_that_take_a_turn_over_at_once_one_does() -> None:
    world = World("between steps")
    await world.ask()
    runners = [world.worker() for _ in range(4)]
    streams = [stream for stream in await asyncio.gather(*(each.take_up() for each in runners)) if stream is not None]
    assert len(streams) == 1
    assert (await streams[0].result()).text == DONE
    await streams[0].ended()


async def test_a_turn_that_is_alive_is_left_to_its_process() -> None:
    world = World("between steps")
    await world.ask()
    world.passed *= 0
    runner = world.worker()
    assert not await runner.has_work()
    assert await runner.take_up() is None
