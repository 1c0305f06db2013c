"""A turn whose process died is finished by another, which does nothing twice that was done."""

import asyncio
from collections.abc import Sequence

import pytest
from pydantic import BaseModel

from omniagent import Agent, Budget, Query, tool
from omniagent.errors import ToolOutcomeUnknown
from omniagent.messages import Part, ReasoningPart, TextPart, ToolPart
from omniagent.protocol import sse
from omniagent.testing import MemoryCounter, ScriptedModel
from omniagent.turns.replay import record_frames
from omniagent.turns.setup import MAX_ATTEMPTS
from tests.fixtures.conversation import read
from tests.turns.deaths import LEASE_SECONDS, NEVER, QUERY, MortalProcess, Stage, World

STAGES = {
    # stage: model calls in all, where everything was logged and where only what must be
    "after begin_turn": (3, 3),
    "first token": (3, 3),
    "mid text": (3, 3),
    "mid arguments": (3, 3),
    "before a tool": (2, 2),
    "in a tool": (2, 2),
    "after a tool": (2, 2),
    "between steps": (3, 3),
    "in the last text": (3, 3),
    "before finish_turn": (2, 2),
}
ENDED = ["after finish_turn", "before release", "after release"]


pytestmark = pytest.mark.usefixtures("burial")


async def undisturbed() -> list[Part]:
    world = World()
    await world.runner().run(QUERY)
    assert (len(world.model.requests), world.runs) == (2, ["c1"])
    return list((await world.answer()).parts)


@pytest.mark.parametrize("tick_seconds", [0.005, NEVER], ids=["logged", "not logged"])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_takeover_repeats_only_the_step_under_way(stage: str, tick_seconds: float) -> None:
    world = World(stage, tick_seconds=tick_seconds, retry_safe=True)
    await world.die()
    head = await world.session.head()
    assert head is not None
    assert head.active_turn_id == world.turn_id
    asked = len(world.model.requests)
    answer = await world.finished()
    was_asked = asked > 0 and stage != "after begin_turn"
    assert len(world.model.requests) == (STAGES[stage][0] if was_asked else asked + 2)
    assert answer.parts == await undisturbed()
    assert answer.id == world.turn_id
    assert answer.metadata["stepCount"] == 2
    assert set(world.runs) == {"c1"}, "the same idempotency key"
    assert len(world.runs) == (2 if stage == "in a tool" or (stage == "after a tool" and tick_seconds == NEVER) else 1)
    assert await world.registry.running(world.session.key) is None


@pytest.mark.parametrize("tick_seconds", [0.005, NEVER], ids=["logged", "not logged"])
@pytest.mark.parametrize("stage", ["before a tool", "in a tool", "after a tool"])
async def test_a_tool_that_may_not_run_again_has_an_unknown_outcome(stage: str, tick_seconds: float) -> None:
    world = World(stage, tick_seconds=tick_seconds)
    await world.die()
    runs = list(world.runs)
    answer = await world.finished()
    assert world.runs == runs
    [call] = [part for part in answer.parts if isinstance(part, ToolPart)]
    if stage == "after a tool" and tick_seconds != NEVER:
        assert call.output == "worked 1"
        return
    assert call.error is not None
    assert "may have taken effect" in call.error
    assert call.public_error == ToolOutcomeUnknown.public
    shown = [part for part in world.model.requests[-1].messages[-1].parts if isinstance(part, ToolPart)]
    assert [part.error for part in shown] == [call.error]


@pytest.mark.parametrize("stage", ENDED)
async def test_a_turn_that_was_stored_before_its_process_died_needs_nothing(stage: str) -> None:
    world = World(stage)
    await world.die()
    assert await world.continued() is None
    assert len(world.model.requests) == 2
    assert list((await world.answer()).parts) == await undisturbed()


async def test_a_living_turn_is_left_alone() -> None:
    world = World("in a tool")
    stream = await world.runner().start(QUERY)
    await world.reached.wait()
    assert await world.continued() is None
    world.goes_on.set()
    assert (await stream.result()).status == "complete"
    assert len(world.model.requests) == 2


async def test_only_one_of_many_continues_a_turn() -> None:
    world = World("mid text")
    await world.die()
    first = await world.continued()
    assert first is not None
    assert await world.continued() is None
    await first.ended()
    assert (await world.answer()).status == "complete"


async def test_a_turn_can_be_continued_although_two_processes_died_before_they_logged_anything() -> None:
    world = World("after begin_turn", tick_seconds=NEVER)
    world.deaths_left = 2
    await world.die()
    await world.killed(asyncio.create_task(world.continued()))
    assert (await world.finished()).parts == await undisturbed()


async def test_a_turn_can_be_continued_again_and_again() -> None:
    world = World("in the last text")
    world.deaths_left = MAX_ATTEMPTS
    await world.die()
    for _ in range(MAX_ATTEMPTS - 1):
        assert await world.continued() is not None
        await world.killed()
    answer = await world.finished()
    assert answer.parts == await undisturbed()
    assert (len(world.model.requests), world.runs) == (1 + MAX_ATTEMPTS + 1, ["c1"])


async def test_a_turn_that_kills_every_process_ends_interrupted() -> None:
    world = World("in a tool", retry_safe=True)
    world.deaths_left = MAX_ATTEMPTS + 1
    await world.die()
    for _ in range(MAX_ATTEMPTS):
        assert await world.continued() is not None
        await world.killed()
    assert await world.continued() is None
    assert (await world.answer()).status == "interrupted"
    assert len(world.runs) == MAX_ATTEMPTS + 1
    assert (await world.runner().run(Query("Go on", "m2"))).status == "complete"


async def test_a_stop_that_the_dead_process_did_not_see_is_obeyed() -> None:
    world = World("mid text", tick_seconds=NEVER)
    asking = asyncio.create_task(world.runner().run(QUERY))
    await world.reached.wait()
    assert await world.runner().stop()
    await world.killed(asking)
    assert await world.continued() is None
    answer = await world.answer()
    assert (answer.status, answer.metadata["stopReason"]) == ("cancelled", "cancelled")
    assert len(world.model.requests) == 1


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("stage", ["after claim", "before repair_turn"])
async def test_a_stop_is_obeyed_although_the_process_that_would_close_the_turn_fails(stage: str, dies: bool) -> None:
    world = World("mid text", tick_seconds=NEVER)
    asking = asyncio.create_task(world.runner().run(QUERY))
    await world.reached.wait()
    assert await world.runner().stop()
    await world.killed(asking)
    world.stage, world.deaths_left = stage, 1
    continuing = asyncio.create_task(world.continued())
    if dies:
        await world.killed(continuing)
    else:
        await world.reached.wait()
        continuing.cancel()  # as a store that does not answer, or the end of the invocation
        await asyncio.wait([continuing])
    assert await world.continued() is None
    assert (await world.answer()).status == "cancelled"
    assert len(world.model.requests) == 1


async def test_a_stop_of_a_queued_message_is_obeyed_although_its_process_has_died() -> None:
    world = World("mid text", tick_seconds=NEVER)
    await world.runner().accept(QUERY)
    asking = asyncio.create_task(world.runner().run_accepted("m1"))
    await world.killed(asking)
    assert await world.runner(MortalProcess(world)).stop("m1")
    assert await world.continued() is None
    assert (await world.answer()).status == "cancelled"
    assert len(world.model.requests) == 1


async def test_the_same_message_sent_again_continues_its_turn() -> None:
    world = World("between steps")
    await world.die()
    world.process = MortalProcess(world)
    result = await world.runner().run(QUERY)
    assert (result.status, result.message_id) == ("complete", world.turn_id)
    assert list(result.parts) == await undisturbed()
    assert (len(world.model.requests), world.runs) == (3, ["c1"])


@pytest.mark.parametrize("tick_seconds", [0.005, NEVER], ids=["logged", "not logged"])
async def test_a_turn_that_is_answered_again_and_dies_runs_no_tool_again(tick_seconds: float) -> None:
    world = World("in the last text", tick_seconds=tick_seconds)
    stopped = asyncio.create_task(world.runner().run(QUERY))
    await world.reached.wait()
    stopped.cancel()
    await asyncio.wait([stopped])
    assert (await world.answer()).status == "cancelled"
    world.deaths_left = 1
    world.reached.clear()
    await world.die()
    answer = await world.finished()
    assert (len(world.model.requests), world.runs) == (4, ["c1"])
    assert answer.parts == await undisturbed()


async def test_another_message_closes_the_dead_turn_and_is_answered() -> None:
    world = World("between steps")
    await world.die()
    world.process = MortalProcess(world)
    assert (await world.runner().run(Query("Something else", "m2"))).status == "complete"
    assert (await world.answer()).status == "interrupted"


async def test_a_regeneration_is_continued_and_replaces_the_answer_once() -> None:
    world = World()
    before = await world.runner().run(QUERY)
    world.stage = "mid text"
    regeneration = Query(regenerate=True, message_id="m1", replaces=before.message_id)
    await world.die(regeneration)
    assert (await world.answer()).id == before.message_id
    answer = await world.finished()
    assert answer.id != before.message_id
    assert answer.metadata["replaces"] == before.message_id
    assert answer.parts == await undisturbed()


async def test_a_regeneration_that_its_retry_continues_can_be_stopped_by_the_answer_that_it_replaces() -> None:
    world = World()
    before = await world.runner().run(QUERY)
    world.stage = "mid text"
    regeneration = Query(regenerate=True, message_id="m1", replaces=before.message_id)
    await world.die(regeneration)
    world.process, world.deaths_left = MortalProcess(world), 1
    stream = await world.runner().start(regeneration)
    await world.reached.wait()
    assert await world.runner().stop(before.message_id)
    assert (await stream.result()).status == "cancelled"
    await stream.ended()


async def test_the_model_is_shown_what_only_the_dead_process_knew() -> None:
    """Its own reasoning, sealed by the provider, and what a tool reported, which the client is not told."""
    world = World("between steps")
    world.arguments = '{"n": -1}'
    await world.die()
    await world.finished()
    undisturbed_request, _, request = world.model.requests[-3:]
    assert len(undisturbed_request.messages) == 1
    assert request == world.model.requests[1], "the step is asked again as it was"
    parts = request.messages[-1].parts
    assert [part.provider_data for part in parts if isinstance(part, ReasoningPart)] == [
        {"id": "r1", "encrypted_content": "secret"}
    ]
    assert [part.error for part in parts if isinstance(part, ToolPart)] == ["n: less than zero, see row 42"]


class Point(BaseModel):
    x: int


async def test_a_correction_that_the_model_was_asked_for_is_asked_for_again() -> None:
    world = World("in the correction")
    world.agent = Agent("helper", "", output=Point)
    pause = Stage(world, "in the correction")
    world.model = ScriptedModel("x is one", ['{"x":', pause, "1}"], '{"x": 1}')
    await world.die()
    stream = await world.continued()
    assert stream is not None
    result = await stream.result()
    assert result.output == Point(x=1)
    _, died, again = world.model.requests
    assert again == died
    assert [part.text for part in result.parts if isinstance(part, TextPart)] == ["x is one", '{"x": 1}']


async def test_a_turn_that_died_before_it_could_wait_waits_for_the_same_request() -> None:
    world = World("before finish_turn")
    world.steps = 1

    @tool(approval=True)
    async def work(n: int) -> int:
        """Work."""
        raise AssertionError("nobody approved it")

    world.agent = Agent("helper", "", [work])
    await world.die()
    stream = await world.continued()
    assert stream is not None
    result = await stream.result()
    assert (result.status, len(world.model.requests)) == ("waiting", 1)
    [call] = [part for part in result.parts if isinstance(part, ToolPart)]
    assert call.request is not None
    shown_ids = {event["approvalId"] for event in sse.decode(await world.log()) if "approvalId" in event}
    assert shown_ids == {call.request.id}


@pytest.mark.parametrize("stage", ["in a tool", "before finish_turn"])
async def test_a_continued_turn_adds_only_its_own_calls(stage: str) -> None:
    world = World(stage, retry_safe=True)
    world.budget, world.counter = Budget(tokens_per_day=100_000), MemoryCounter()
    await world.die()
    answer = await world.finished()
    spending = await world.runner().spending()
    assert spending is not None
    assert spending.tokens == answer.usage.total_tokens > 0
    assert len(world.model.requests) == world.steps


async def test_a_frozen_process_that_comes_back_writes_nothing() -> None:
    world = World("in the last text")
    stream = await world.runner().start(QUERY)
    await world.reached.wait()
    frozen = world.process
    frozen.thawed.clear()
    world.clock.pass_by(LEASE_SECONDS)
    answer = await world.finished()
    log = await world.log()
    world.goes_on.set()
    frozen.thawed.set()
    await stream.ended()
    assert await world.answer() == answer
    assert await world.log() == log


async def followed(world: World, *, resets: bool = False, until: bytes = b"") -> "asyncio.Task[bytes]":
    """Let a reader in another process follow the turn. Returns when it has been sent something."""
    stream = await world.runner(MortalProcess(world)).resume(resets=resets)
    assert stream is not None
    sent = [b""]

    async def frames() -> bytes:
        async for each in stream.sse():
            sent[0] += each
        return sent[0]

    reading = asyncio.create_task(frames())
    while not sent[0] or until not in sent[0]:
        world.clock.pass_by(0.001)  # the time of a renewal tells that its process lives
        await asyncio.sleep(0.001)
    return reading


@pytest.mark.parametrize("stage", ["first token", "mid text", "mid arguments", "in a tool", "in the last text"])
async def test_a_client_that_reconnects_after_the_death_sees_one_undisturbed_answer(stage: str) -> None:
    world = World(stage, retry_safe=True)
    await world.die()
    reader = await followed(world)
    await asyncio.sleep(5 * world.settings.tick_seconds)
    await world.finished()
    frames = await reader
    assert frames.endswith(sse.DONE)
    assert b"reset-step" not in frames
    assert shown(record_frames(frames).parts) == shown(await undisturbed())


async def test_a_client_that_saw_a_step_which_is_withdrawn_resumes_and_sees_the_new_one() -> None:
    world = World("mid text")
    asking = asyncio.create_task(world.runner().run(QUERY))
    await world.reached.wait()
    reader = await followed(world, until=b"Let me ")
    await world.killed(asking)
    await world.finished()
    frames = await reader
    assert b"Let me " in frames
    assert not frames.endswith(sse.DONE), "the client resumes"
    again = await (await followed(world))
    assert shown(record_frames(again).parts) == shown(await undisturbed())


async def test_a_client_that_can_reset_a_step_sees_one_stream() -> None:
    world = World("mid text")
    asking = asyncio.create_task(world.runner().run(QUERY))
    await world.reached.wait()
    reader = await followed(world, resets=True, until=b"Let me ")
    await world.killed(asking)
    await world.finished()
    before, reset, after = (await reader).partition(b'data: {"type":"reset-step"}\n\n')
    assert b"Let me " in before
    assert reset
    # The client drops what follows the step's start, which stays.
    kept = before[: before.rindex(sse.START_STEP) + len(sse.START_STEP)]
    assert after.endswith(sse.DONE)
    assert shown(record_frames(kept + after).parts) == shown(await undisturbed())


async def test_nobody_else_closes_a_dead_turn_while_somebody_may_continue_it() -> None:
    world = World("mid text")
    await world.die()
    head = await world.runner(MortalProcess(world)).settle()
    assert head is not None
    assert head.active_turn_id == world.turn_id
    world.clock.pass_by(world.grace_seconds)
    head = await world.runner(MortalProcess(world)).settle()
    assert head is not None
    assert head.active_turn_id is None
    assert (await world.answer()).status == "interrupted"


async def test_what_the_dead_process_knew_reaches_no_client() -> None:
    world = World("between steps")
    world.arguments = '{"n": -1}'
    await world.die()
    world.process = MortalProcess(world)
    frames = await read(await world.runner().start(QUERY))
    assert b"row 42" in await world.log()
    assert b"encrypted_content" in await world.log()
    assert b"row 42" not in frames
    assert b"encrypted_content" not in frames


def shown(parts: Sequence[Part]) -> list[Part]:
    """What a client sees of the parts."""
    return [
        part.model_copy(update={"provider_data": None}) if isinstance(part, ReasoningPart) else part for part in parts
    ]
