"""A message while a turn runs: rejected, queued, steering or interrupting."""

import asyncio
import time
from dataclasses import replace

import pytest

from omniagent import AnswerStream, Budget, Query, Usage, tool
from omniagent.errors import InvalidRequest, ModelUnavailable, QueueFull, TooManyRequests, TurnInProgress
from omniagent.protocol import sse
from omniagent.providers import ModelFinish
from omniagent.testing import Gate, ScriptedModel, ToolCall
from tests.fixtures.live_turns import begin_turn
from tests.runner.sessions import Sessions, ask, texts_of, until


async def read(stream: AnswerStream) -> list[dict[str, object]]:
    return list(sse.decode(b"".join([frames async for frames in stream.sse()])))


async def test_queued_messages_are_answered_in_order_each_once(sessions: Sessions) -> None:
    model, first, gate = await sessions.answering("Two.", "Three.")
    second = await sessions.runner(model).start(ask("m2", "queue"))
    await sessions.posted("m2")
    third = await sessions.runner(model).start(ask("m3", "queue"))
    retried = await sessions.runner(model).start(ask("m2", "queue"))
    await sessions.posted("m2", "m3")
    waiting = second.sse()
    assert await anext(waiting) == sse.KEEP_ALIVE, "the status line does not wait for the turn"
    gate.set()
    assert await texts_of(first, third, second, retried) == ["One.", "Three.", "Two.", "Two."]
    assert second.message_id == retried.message_id
    events = [event["type"] async for frames in waiting for event in sse.decode(frames)]
    assert (events[0], events[-2:]) == ("start", ["finish", "data-session"])
    assert [line[:2] for line in sessions.history] == [
        *(("m1", "m1?"), ("", "One."), ("m2", "m2?"), ("", "Two."), ("m3", "m3?"), ("", "Three."))
    ]
    assert [message.text for message in model.requests[2].messages] == ["m1?", "One.", "m2?", "Two.", "m3?"]


async def test_a_steering_message_joins_the_turn_before_its_next_model_call(sessions: Sessions) -> None:
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
    await texts_of(first, second)
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
    assert (retried.message_id, len(model.requests)) == (first.message_id, 2)
    assert await sessions.runner(ScriptedModel("Next."), look).run(ask("m3"))


async def test_a_steering_message_after_the_last_step_is_the_next_turn(sessions: Sessions) -> None:
    sessions.settings = replace(sessions.settings, max_steps=1)
    model, first, gate = await sessions.answering("Two.")
    second = await sessions.runner(model).start(ask("m2", "steer"))
    await sessions.polled()
    gate.set()
    assert await texts_of(first, second) == ["One.", "Two."]
    assert [line[:2] for line in sessions.history] == [("m1", "m1?"), ("", "One."), ("m2", "m2?"), ("", "Two.")]


async def test_an_answer_that_is_given_again_keeps_what_had_joined_it(sessions: Sessions) -> None:
    model, first, gate = await sessions.answering("Two.", "Better.")
    second = await sessions.runner(model).start(ask("m2", "steer"))
    await sessions.polled()
    gate.set()
    await texts_of(first, second)
    assert [line[1:] for line in sessions.history[1:]] == [("One.", "…"), ("m2?", "joined"), ("Two.", "complete")]
    events = await read(await sessions.runner(model).start(Query(regenerate=True)))
    assert {"type": "data-steering", "id": "m2", "data": {"text": "m2?"}} in events
    assert [line[1:] for line in sessions.history[1:]] == [("", "…"), ("m2?", "joined"), ("Better.", "complete")]
    assert [message.text for message in model.requests[-1].messages] == ["m1?", "m2?"]
    failing = sessions.runner(ScriptedModel(ModelUnavailable()))
    assert (await failing.run(Query(regenerate=True))).message.steering_ids == ["m2"]


async def test_a_stop_by_name_reaches_a_message_that_waits_and_no_other(sessions: Sessions) -> None:
    model, first, gate = await sessions.answering("Three.")
    second = await sessions.runner(model).start(ask("m2", "queue"))
    third = await sessions.runner(model).start(ask("m3", "queue"))
    assert await sessions.runner(model).stop("m2")
    gate.set()
    assert await texts_of(first, second, third) == ["One.", "", "Three."]
    assert [(await stream.result()).status for stream in (first, second, third)] == [
        *("complete", "cancelled", "complete")
    ]
    assert sessions.history[2:4] == [("m2", "m2?", "complete"), ("", "", "cancelled")]
    assert model.remaining == 0, "the model was not asked for what was stopped"
    assert (await sessions.runner(ScriptedModel("Now.")).run(ask("m4"))).message.turn_number == 4


async def test_a_stop_of_the_session_reaches_all_that_wait(sessions: Sessions) -> None:
    model, first, _ = await sessions.answering()
    others = [await sessions.runner(model).start(ask(each, "queue")) for each in ("m2", "m3")]
    assert await sessions.runner(model).stop()
    assert [(await stream.result()).status for stream in (first, *others)] == ["cancelled"] * 3
    await texts_of(first, *others)
    assert [line[0] for line in sessions.history if line[0]] == ["m1", "m2", "m3"]
    assert not await sessions.runner(model).stop()


async def test_a_message_that_has_joined_stops_the_answer_and_cannot_be_edited(sessions: Sessions) -> None:
    after = Gate()
    model, first, before = await sessions.answering(["Two", after, "."])
    await sessions.runner(model).start(ask("m2", "steer"))
    await sessions.polled()
    before.set()
    await after.reached()
    with pytest.raises(InvalidRequest):
        await sessions.runner(model).start(Query("edited", "m2", busy="interrupt"))
    assert (await sessions.head()).running is not None
    assert await sessions.runner(model).stop("m2")
    assert (await first.result()).status == "cancelled"


async def test_a_queue_takes_no_more_than_the_setting_says(sessions: Sessions) -> None:
    sessions.settings = replace(sessions.settings, max_queued_messages=1)
    model, _, gate = await sessions.answering("Two.")
    second = await sessions.runner(model).start(ask("m2", "queue"))
    with pytest.raises(QueueFull):
        await sessions.runner(model).start(ask("m3", "queue"))
    gate.set()
    assert await texts_of(second) == ["Two."]
    assert [line[0] for line in sessions.history if line[0]] == ["m1", "m2"]


async def test_a_message_that_is_cancelled_while_it_waits_keeps_its_place_as_a_stopped_one(sessions: Sessions) -> None:
    model, first, gate = await sessions.answering("Three.")
    second = asyncio.create_task(sessions.runner(model).run(ask("m2"), busy="queue"))
    await sessions.posted("m2")
    second.cancel()
    await asyncio.wait([second])
    assert second.cancelled()
    gate.set()
    await first.ended()
    await sessions.runner(model).run(ask("m3"))
    assert [(line[0], line[2]) for line in sessions.history if line[0] or line[2] != "complete"] == [
        *(("m1", "complete"), ("m2", "complete"), ("", "cancelled"), ("m3", "complete"))
    ]


async def test_a_message_over_the_budget_gets_a_turn_that_says_so(sessions: Sessions) -> None:
    sessions.budget = Budget(tokens_per_day=50_000)
    gate = Gate()
    model = ScriptedModel(["One", gate, ModelFinish("stop", Usage(60_000, 200))])
    await sessions.runner(model).start(ask("m1"))
    await gate.reached()
    second = await sessions.runner(model).start(ask("m2", "queue"))
    gate.set()
    result = await second.result()
    assert (result.status, result.error and result.error.code) == ("failed", "budget_exceeded")
    assert [line[0] for line in sessions.history if line[0]] == ["m1", "m2"]


async def test_a_message_that_waits_counts_as_one_request_when_it_is_posted(sessions: Sessions) -> None:
    sessions.budget = Budget(requests_per_minute=2)
    model, _, gate = await sessions.answering("Two.")
    second = await sessions.runner(model).start(ask("m2", "queue"))
    with pytest.raises(TooManyRequests):
        await sessions.runner(model).start(ask("m3", "queue"))
    retried = await sessions.runner(model).start(ask("m2", "queue"))
    assert await sessions.queued() == ["m2"]
    gate.set()
    assert await texts_of(second, retried) == ["Two.", "Two."]


async def test_a_message_whose_request_ends_first_waits_on_and_the_same_request_finds_it(sessions: Sessions) -> None:
    model, _, gate = await sessions.answering("Two.")
    hurried = await sessions.runner(model).start(ask("m2", "queue"), deadline=time.monotonic())
    frames = b"".join([frames async for frames in hurried.sse()])
    assert not frames.replace(sse.KEEP_ALIVE, b""), "it ends without an end, so it is to be resumed"
    with pytest.raises(TurnInProgress):
        await hurried.result()
    await hurried.ended()
    again = await sessions.runner(model).start(ask("m2", "queue"))
    assert await sessions.queued() == ["m2"]
    gate.set()
    assert await texts_of(again) == ["Two."]


async def test_a_message_that_waits_also_waits_for_a_slot(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("omniagent.turns.engine.queued.PAUSE_SECONDS", 0.01)
    caplog.set_level("INFO")
    elsewhere = Gate()
    model, _, gate = await sessions.answering(["Elsewhere", elsewhere, "."], "Two.")
    await sessions.runner(model, session=sessions.session("other")).start(ask("m1"))
    await elsewhere.reached()
    sessions.settings = replace(sessions.settings, max_running_turns_per_user=1)
    second = await sessions.runner(model).start(ask("m2", "queue"))
    gate.set()

    async def found_no_slot() -> bool:
        return "message stays in line" in caplog.messages

    await until(found_no_slot)
    assert await sessions.queued() == ["m2"]
    elsewhere.set()
    assert await texts_of(second) == ["Two."]


# On another branch


async def first_answer(sessions: Sessions) -> str:
    """Answer two messages, and return the node of the first answer."""
    runner = sessions.runner(ScriptedModel("One.", "Two."))
    first = await runner.run(ask("m1"))
    await runner.run(ask("m2"))
    return first.message_id


@pytest.mark.parametrize(
    ("is_edit", "expected"), [(True, ["aside", "Aside."]), (False, ["m1?", "One.", "aside", "Aside."])]
)
async def test_a_message_of_another_branch_does_not_join_the_running_answer(
    sessions: Sessions, is_edit: bool, expected: list[str]
) -> None:
    first, gate = await first_answer(sessions), Gate()
    model = ScriptedModel(["Three", gate, "."], "Aside.")
    third = await sessions.runner(model).start(ask("m3"))
    await gate.reached()
    query = Query("aside", "m1") if is_edit else Query("aside", "m4", parent=first)
    aside = await sessions.runner(model).start(query, busy="steer")
    await sessions.polled()
    gate.set()
    assert await texts_of(third, aside) == ["Three.", "Aside."]
    assert [text for _, text, _ in sessions.history] == expected


async def test_a_regeneration_does_not_stream_the_answer_of_a_dead_turn(sessions: Sessions) -> None:
    first = await first_answer(sessions)
    await begin_turn(sessions.session(), message_id="m3", is_dead=True)
    runner = sessions.runner(ScriptedModel("Three.", "Again."))
    assert (await runner.run(Query(regenerate=True, replaces=first))).text == "Again."
    assert [text for _, text, _ in sessions.history] == ["m1?", "Again."]
