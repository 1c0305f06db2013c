"""A message while a turn runs: rejected, queued, steering or interrupting."""

import asyncio
import time
from dataclasses import replace

import pytest

from omniagent import Agent, AnswerStream, Budget, Query, RunResult, Usage, tool
from omniagent.ai.operator import TurnOperator
from omniagent.errors import ModelUnavailable, QueueFull, TooManyRequests, TurnInProgress
from omniagent.protocol import sse
from omniagent.providers import ModelFinish
from omniagent.settings import Busy
from omniagent.testing import Gate, MemoryCounter, ScriptedModel, ToolCall
from tests.fixtures.conversation import Clock
from tests.runner.sessions import Busily, ask, until


async def read(stream: AnswerStream) -> list[dict[str, object]]:
    return list(sse.decode(b"".join([frames async for frames in stream.sse()])))


async def test_a_message_is_rejected_unless_it_says_otherwise(sessions: Busily) -> None:
    gate = Gate()
    runner = sessions.runner(ScriptedModel(["One", gate, "."]))
    first = await runner.start(ask("m1"))
    await gate.reached()
    policies: tuple[Busy | None, ...] = (None, "reject")
    for busy in policies:
        with pytest.raises(TurnInProgress):
            await runner.start(ask("m2", busy))
    gate.set()
    await first.ended()
    assert sessions.history == [("m1", "m1?", "complete"), ("", "One.", "complete")]


async def test_queued_messages_are_answered_in_order_each_once(sessions: Busily) -> None:
    gate = Gate()
    model = ScriptedModel(["One", gate, "."], "Two.", "Three.")
    runner = sessions.runner(model)
    first = await runner.start(ask("m1"))
    await gate.reached()
    second = await sessions.runner(model).start(ask("m2", "queue"))
    await sessions.posted("m2")
    third = await sessions.runner(model).start(ask("m3", "queue"))
    retried = await sessions.runner(model).start(ask("m2", "queue"))
    await sessions.posted("m2", "m3")
    waiting = second.sse()
    assert await anext(waiting) == sse.KEEP_ALIVE, "the status line does not wait for the turn"
    gate.set()
    results: list[RunResult] = await asyncio.gather(*(stream.result() for stream in (first, third, second, retried)))
    assert [result.text for result in results] == ["One.", "Three.", "Two.", "Two."]
    assert results[2].message_id == results[3].message_id
    events = [event["type"] async for frames in waiting for event in sse.decode(frames)]
    assert (events[0], events[-2:]) == ("start", ["finish", "data-session"])
    await asyncio.gather(*(stream.ended() for stream in (first, second, third, retried)))
    assert sessions.history == [
        ("m1", "m1?", "complete"),
        ("", "One.", "complete"),
        ("m2", "m2?", "complete"),
        ("", "Two.", "complete"),
        ("m3", "m3?", "complete"),
        ("", "Three.", "complete"),
    ]
    assert [message.text for message in model.requests[2].messages] == ["m1?", "One.", "m2?", "Two.", "m3?"]


async def test_an_interrupting_message_ends_the_turn_with_what_it_has(sessions: Busily) -> None:
    gate = Gate()
    model = ScriptedModel(["One and", gate, " more."], "Two.")
    first = await sessions.runner(model).start(ask("m1"))
    await gate.reached()
    result = await sessions.runner(model).run(ask("m2", "interrupt"))
    assert result.text == "Two."
    assert (await first.result()).status == "cancelled"
    await first.ended()
    assert sessions.history == [
        ("m1", "m1?", "complete"),
        ("", "One and", "cancelled"),
        ("m2", "m2?", "complete"),
        ("", "Two.", "complete"),
    ]


async def test_a_steering_message_joins_the_turn_before_its_next_model_call(sessions: Busily) -> None:
    reached, going_on = asyncio.Event(), asyncio.Event()

    @tool
    async def look() -> str:
        """Look."""
        reached.set()
        await going_on.wait()
        return "seen"

    gate = Gate()
    model = ScriptedModel(["Looking. ", ToolCall("look")], ["A short", gate, " answer."])
    first = await sessions.runner(model, look).start(ask("m1"))
    await reached.wait()
    second = await sessions.runner(model, look).start(ask("m2", "steer"))
    await sessions.polled()
    going_on.set()
    frames = [b""]
    async for some in second.sse():
        frames.append(some)
        if b"data-steering" in b"".join(frames):
            gate.set()
    events, followed = await read(first), list(sse.decode(b"".join(frames)))
    assert events == followed, "the poster follows the whole message"
    assert {"type": "data-steering", "id": "m2", "data": {"text": "m2?"}} in events
    await asyncio.gather(first.ended(), second.ended())
    assert sessions.history == [
        ("m1", "m1?", "complete"),
        ("", "Looking. ", "…"),
        ("m2", "m2?", "joined"),
        ("", "A short answer.", "complete"),
    ]
    assert [(message.role, message.text) for message in model.requests[1].messages] == [
        ("user", "m1?"),
        ("assistant", "Looking. "),
        ("user", "m2?"),
    ]
    retried = await sessions.runner(model, look).run(ask("m2"))
    assert retried.message_id == first.message_id
    assert len(model.requests) == 2
    assert await sessions.runner(ScriptedModel("Next."), look).run(ask("m3"))


async def test_a_steering_message_after_the_last_step_is_the_next_turn(sessions: Busily) -> None:
    sessions.settings = replace(sessions.settings, max_steps=1)
    model, first, gate = await sessions.answering("Two.")
    second = await sessions.runner(model).start(ask("m2", "steer"))
    await sessions.polled()
    gate.set()
    assert (await second.result()).text == "Two."
    await asyncio.gather(first.ended(), second.ended())
    assert [line[:2] for line in sessions.history] == [("m1", "m1?"), ("", "One."), ("m2", "m2?"), ("", "Two.")]


async def test_an_answer_that_is_given_again_keeps_what_had_joined_it(sessions: Busily) -> None:
    model, first, gate = await sessions.answering("Two.", "Better.")
    second = await sessions.runner(model).start(ask("m2", "steer"))
    await sessions.polled()
    gate.set()
    await asyncio.gather(first.ended(), second.ended())
    assert [line[1:] for line in sessions.history[1:]] == [("One.", "…"), ("m2?", "joined"), ("Two.", "complete")]
    events = await read(await sessions.runner(model).start(Query(regenerate=True)))
    assert {"type": "data-steering", "id": "m2", "data": {"text": "m2?"}} in events
    assert sessions.history == [
        ("m1", "m1?", "complete"),
        ("", "", "…"),
        ("m2", "m2?", "joined"),
        ("", "Better.", "complete"),
    ]
    assert [message.text for message in model.requests[-1].messages] == ["m1?", "m2?"]
    failing = sessions.runner(ScriptedModel(ModelUnavailable()))
    assert (await failing.run(Query(regenerate=True))).message.steering_ids == ["m2"]


async def test_a_regeneration_is_refused_or_interrupts(sessions: Busily) -> None:
    gate = Gate()
    model = ScriptedModel("One.", ["Two", gate, "."], "Three.")
    await sessions.runner(model).run(ask("m1"))
    second = await sessions.runner(model).start(ask("m2"))
    await gate.reached()
    policies: tuple[Busy, ...] = ("queue", "steer")
    for busy in policies:
        with pytest.raises(TurnInProgress):
            await sessions.runner(model).start(Query(regenerate=True, busy=busy))
    again = await sessions.runner(model).start(Query(regenerate=True, busy="interrupt"))
    assert (await again.result()).text == "Three."
    await asyncio.gather(second.ended(), again.ended())
    assert [line[:2] for line in sessions.history[2:]] == [("m2", "m2?"), ("", "Three.")]


async def test_a_stop_by_name_reaches_a_message_that_waits_and_no_other(sessions: Busily) -> None:
    model, first, gate = await sessions.answering("Three.")
    second = await sessions.runner(model).start(ask("m2", "queue"))
    third = await sessions.runner(model).start(ask("m3", "queue"))
    assert await sessions.runner(model).stop("m2")
    gate.set()
    assert [(await stream.result()).status for stream in (first, second, third)] == [
        "complete",
        "cancelled",
        "complete",
    ]
    await asyncio.gather(first.ended(), second.ended(), third.ended())
    assert sessions.history[2:4] == [("m2", "m2?", "complete"), ("", "", "cancelled")]
    assert model.remaining == 0, "the model was not asked for what was stopped"
    last = await sessions.runner(ScriptedModel("Now.")).run(ask("m4"))
    assert last.turn_number == 4


async def test_a_stop_of_the_session_reaches_all_that_wait(sessions: Busily) -> None:
    model, first, _ = await sessions.answering()
    others = [await sessions.runner(model).start(ask(each, "queue")) for each in ("m2", "m3")]
    assert await sessions.runner(model).stop()
    assert [(await stream.result()).status for stream in (first, *others)] == ["cancelled"] * 3
    await asyncio.gather(*(stream.ended() for stream in (first, *others)))
    assert [line[0] for line in sessions.history if line[0]] == ["m1", "m2", "m3"]
    assert not await sessions.runner(model).stop()


async def test_a_stop_that_names_a_message_that_has_joined_stops_the_answer(sessions: Busily) -> None:
    before, after = Gate(), Gate()
    model = ScriptedModel(["One", before, "."], ["Two", after, "."])
    first = await sessions.runner(model).start(ask("m1"))
    await before.reached()
    second = await sessions.runner(model).start(ask("m2", "steer"))
    await sessions.polled()
    before.set()
    await after.reached()
    assert await sessions.runner(model).stop("m2")
    assert (await first.result()).status == "cancelled"
    await asyncio.gather(first.ended(), second.ended())


async def test_a_queue_takes_no_more_than_the_setting_says(sessions: Busily) -> None:
    sessions.settings = replace(sessions.settings, max_queued_messages=1)
    model, first, gate = await sessions.answering("Two.")
    second = await sessions.runner(model).start(ask("m2", "queue"))
    with pytest.raises(QueueFull):
        await sessions.runner(model).start(ask("m3", "queue"))
    gate.set()
    await asyncio.gather(first.ended(), second.ended())
    assert [line[0] for line in sessions.history if line[0]] == ["m1", "m2"]


async def test_deleting_the_session_reaches_what_waits(sessions: Busily) -> None:
    model, first, _ = await sessions.answering()
    second = await sessions.runner(model).start(ask("m2", "queue"))
    assert await sessions.runner(model).erase_session()
    assert [event["type"] for event in await read(second)] == ["error"]
    await asyncio.gather(first.ended(), second.ended())
    assert await sessions.queued() == []
    assert not sessions.store.sessions


async def test_a_message_that_is_cancelled_while_it_waits_keeps_its_place_as_a_stopped_one(sessions: Busily) -> None:
    model, first, gate = await sessions.answering("Three.")
    second = asyncio.create_task(sessions.runner(model).run(ask("m2"), busy="queue"))
    await sessions.posted("m2")
    second.cancel()
    await asyncio.wait([second])
    assert second.cancelled()
    gate.set()
    await first.ended()
    await sessions.runner(model).run(ask("m3"))
    assert [(line[0], line[2]) for line in sessions.history] == [
        ("m1", "complete"),
        ("", "complete"),
        ("m2", "complete"),
        ("", "cancelled"),
        ("m3", "complete"),
        ("", "complete"),
    ]


async def test_a_message_over_the_budget_gets_a_turn_that_says_so(sessions: Busily) -> None:
    counter, gate = MemoryCounter(Clock()), Gate()
    finish = ModelFinish("stop", Usage(60_000, 200))
    model = ScriptedModel(["One", gate, finish])

    def runner() -> TurnOperator:
        return budgeted(sessions, model, Budget(tokens_per_day=50_000), counter)

    first = await runner().start(ask("m1"))
    await gate.reached()
    second = await runner().start(ask("m2", "queue"))
    gate.set()
    result = await second.result()
    assert (result.status, result.error and result.error.code) == ("failed", "budget_exceeded")
    await asyncio.gather(first.ended(), second.ended())
    assert [line[0] for line in sessions.history if line[0]] == ["m1", "m2"]


def budgeted(sessions: Busily, model: ScriptedModel, budget: Budget, counter: MemoryCounter) -> TurnOperator:
    agent = Agent("helper", "")
    return TurnOperator(
        agent, sessions.session(), provider=model, registry=sessions.registry, counter=counter, budget=budget
    )


async def test_a_message_that_waits_counts_as_one_request_when_it_is_posted(sessions: Busily) -> None:
    counter, gate = MemoryCounter(Clock()), Gate()
    model = ScriptedModel(["One", gate, "."], "Two.")
    budget = Budget(requests_per_minute=2)
    first = await budgeted(sessions, model, budget, counter).start(ask("m1"))
    await gate.reached()
    second = await budgeted(sessions, model, budget, counter).start(ask("m2", "queue"))
    with pytest.raises(TooManyRequests):
        await budgeted(sessions, model, budget, counter).start(ask("m3", "queue"))
    retried = await budgeted(sessions, model, budget, counter).start(ask("m2", "queue"))
    assert await sessions.queued() == ["m2"]
    gate.set()
    assert (await second.result()).text == (await retried.result()).text == "Two."
    await asyncio.gather(first.ended(), second.ended(), retried.ended())


async def test_a_message_whose_request_ends_first_waits_on_and_the_same_request_finds_it(sessions: Busily) -> None:
    model, first, gate = await sessions.answering("Two.")
    hurried = await sessions.runner(model).start(ask("m2", "queue"), deadline=time.monotonic() + 0.05)
    frames = b"".join([frames async for frames in hurried.sse()])
    assert not frames.replace(sse.KEEP_ALIVE, b""), "it ends without an end, so it is to be resumed"
    with pytest.raises(TurnInProgress):
        await hurried.result()
    await hurried.ended()
    again = await sessions.runner(model).start(ask("m2", "queue"))
    assert await sessions.queued() == ["m2"]
    gate.set()
    assert (await again.result()).text == "Two."
    await asyncio.gather(first.ended(), again.ended())


async def test_a_message_that_waits_also_waits_for_a_slot(
    sessions: Busily, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("omniagent.turns.engine.queued.PAUSE_SECONDS", 0.01)
    caplog.set_level("INFO")
    gate, elsewhere = Gate(), Gate()
    model = ScriptedModel(["One", gate, "."], ["Elsewhere", elsewhere, "."], "Two.")
    first = await sessions.runner(model).start(ask("m1"))
    await gate.reached()
    other = await sessions.runner(model, session=sessions.session("other")).start(ask("m1"))
    await elsewhere.reached()
    sessions.settings = replace(sessions.settings, max_running_turns_per_user=1)
    second = await sessions.runner(model).start(ask("m2", "queue"))
    gate.set()

    async def found_no_slot() -> bool:
        return "message stays in line" in caplog.messages

    await until(found_no_slot)
    assert await sessions.queued() == ["m2"]
    elsewhere.set()
    assert (await second.result()).text == "Two."
    await asyncio.gather(first.ended(), other.ended(), second.ended())
