"""Messages in line behind a turn that waits for an approval."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from omniagent import AnswerStream, InMemorySessionManager, Query, RunResult, tool
from omniagent.ai.operator import TurnOperator
from omniagent.errors import NotWaiting, TurnInProgress, UnknownRequest
from omniagent.protocol import sse
from omniagent.session.live import QueuedMessage
from omniagent.testing import Gate, MemoryRegistry, ScriptedModel, ToolCall
from omniagent.turns.engine import following
from omniagent.turns.state_events import Enqueue
from tests.fixtures.conversation import move_clock
from tests.runner.busily import Busily, ask
from tests.runner.sessions import until

REFUND = ToolCall("refund", {"order": "42"})


@tool(approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request waits for long."""
    monkeypatch.setattr(following, "FOLLOW_SECONDS", 0.01)


def runner(sessions: Busily, model: ScriptedModel) -> TurnOperator:
    return sessions.runner(model, refund)


async def queued_behind(sessions: Busily, *answers: object) -> tuple[ScriptedModel, AnswerStream, RunResult]:
    """Queue m2 while m1 is answered, whose answer then waits. Returns the stream of m2 and what m1 asks."""
    gate = Gate()
    model = ScriptedModel(["Hm. ", gate, REFUND], *answers)  # type: ignore[arg-type]
    first = await runner(sessions, model).start(ask("m1"))
    await gate.reached()
    second = await runner(sessions, model).start(ask("m2", "queue"))
    await sessions.posted("m2")
    gate.set()
    waiting = await first.result()
    assert waiting.status == "waiting"
    return model, second, waiting


async def take_up(sessions: Busily, model: ScriptedModel) -> None:
    """Do what a session needs, as the sweep does."""
    answer = await runner(sessions, model).take_up()
    assert answer is not None
    await answer.ended()


def said(sessions: Busily) -> list[tuple[str, str]]:
    return [line[:2] for line in sessions.history]


async def test_a_message_that_was_queued_before_waits_for_the_answer_and_is_answered_then(sessions: Busily) -> None:
    model, second, waiting = await queued_behind(sessions, "Done.", "Two.")
    assert await runner(sessions, model).resume() is not None, "the waiting answer, replayed"
    assert await runner(sessions, model).take_up() is None
    again = await runner(sessions, model).run(ask("m1"))
    assert (again.status, again.message_id) == ("waiting", waiting.message_id), "sent again, it closes nothing"
    assert await sessions.queued() == ["m2"]
    result = await runner(sessions, model).reply(waiting.requests[0].approve()).result()
    assert (result.status, (await second.result()).text) == ("complete", "Two.")
    await second.ended()
    assert said(sessions) == [("m1", "m1?"), ("", "Hm. Done."), ("m2", "m2?"), ("", "Two.")]


async def test_nothing_is_written_while_a_message_is_held_up(sessions: Busily, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def count(owner: type, name: str) -> None:
        call = getattr(owner, name)

        async def counted(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return await call(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    count(InMemorySessionManager, "head")
    count(InMemorySessionManager, "write")
    for name in ("append", "signal", "count_reader"):
        count(MemoryRegistry, name)
    model, second, waiting = await queued_behind(sessions, "Done.", "Two.")

    async def is_alone() -> bool:
        return len(sessions.store.open_turns) == 1

    async def has_looked() -> bool:
        return calls["head"] >= 3

    await until(is_alone)
    calls.clear()
    await until(has_looked)
    assert set(calls) == {"head"}
    await runner(sessions, model).reply(waiting.requests[0].deny()).result()
    await second.ended()


@pytest.mark.usefixtures("impatient")
async def test_a_blocked_message_frees_its_request_and_is_answered_after_the_approval(
    sessions: Busily,
) -> None:
    model, second, waiting = await queued_behind(sessions, "Done.", "Two.")
    frames = b"".join([frames async for frames in second.sse()])
    assert list(sse.decode(frames)) == [], "it ends without an end of an answer: to be resumed"
    with pytest.raises(TurnInProgress):
        await second.result()
    approved = await runner(sessions, model).reply(waiting.requests[0].approve())
    await approved.ended()
    await take_up(sessions, model)
    assert said(sessions) == [("m1", "m1?"), ("", "Hm. Done."), ("m2", "m2?"), ("", "Two.")]
    again = await runner(sessions, model).run(ask("m2", "queue"))
    assert again.text == "Two."


@pytest.mark.parametrize("busy", ["reject", "queue", "steer", "interrupt"])
async def test_a_new_message_closes_what_is_asked_and_is_answered_after_those_that_waited(
    sessions: Busily, busy: str
) -> None:
    model, second, waiting = await queued_behind(sessions, "Two.", "Three.")
    third = await runner(sessions, model).start(ask("m3", busy))  # type: ignore[arg-type]
    texts = ((await second.result()).text, (await third.result()).text)
    await asyncio.gather(second.ended(), third.ended())
    assert [message_id for message_id, _ in said(sessions) if message_id] == ["m1", "m2", "m3"]
    if busy != "steer":  # that one may join the answer to m2
        assert texts == ("Two.", "Three.")
    closed = sessions.messages[1]
    assert (closed.status, closed.metadata["stopReason"]) == ("cancelled", "unanswered")
    with pytest.raises(NotWaiting):
        await runner(sessions, model).reply(waiting.requests[0].approve(), message_id=waiting.message_id)


async def test_a_message_in_the_background_closes_what_is_asked_behind_others(sessions: Busily) -> None:
    model, second, _ = await queued_behind(sessions, "Two.", "Three.")
    await runner(sessions, model).accept(ask("m3"))
    assert sessions.messages[1].metadata["stopReason"] == "unanswered"
    assert (await second.result()).text == "Two."
    await second.ended()
    await take_up(sessions, model)
    assert said(sessions)[2:] == [("m2", "m2?"), ("", "Two."), ("m3", "m3?"), ("", "Three.")]


async def test_an_interrupting_message_closes_what_the_turn_asks(sessions: Busily) -> None:
    """The turn began to wait before it saw that it was to stop."""
    model = ScriptedModel(REFUND, "Two.")
    await runner(sessions, model).run(ask("m1"))
    await sessions.apply(Enqueue(QueuedMessage("m2?", "m2", busy="interrupt")))
    await take_up(sessions, model)
    assert said(sessions)[2:] == [("m2", "m2?"), ("", "Two.")]
    assert sessions.messages[1].status == "cancelled"


async def test_a_message_that_closed_one_request_waits_for_the_next(sessions: Busily) -> None:
    model, second, _ = await queued_behind(sessions, REFUND, "Done.", "Three.")
    third = await runner(sessions, model).start(ask("m3"))
    asked = await second.result()
    assert asked.status == "waiting"
    assert await sessions.queued() == ["m3"]
    await runner(sessions, model).reply(asked.requests[0].approve()).result()
    assert (await third.result()).text == "Three."
    await asyncio.gather(second.ended(), third.ended())
    assert [message.status for message in sessions.messages[1::2]] == ["cancelled", "complete", "complete"]


async def test_a_stop_closes_what_is_asked_and_stops_what_waits(sessions: Busily) -> None:
    model, second, _ = await queued_behind(sessions)
    assert await runner(sessions, model).stop()
    assert (await second.result()).status == "cancelled"
    await second.ended()
    assert [message.status for message in sessions.messages] == ["complete", "cancelled", "complete", "cancelled"]
    assert not await runner(sessions, model).stop()


async def test_a_stop_of_a_message_that_is_held_up_leaves_what_is_asked(sessions: Busily) -> None:
    model, second, waiting = await queued_behind(sessions, "Done.")
    assert await runner(sessions, model).stop("m2")
    assert [frames async for frames in second.sse()] == [sse.KEEP_ALIVE]
    assert (await runner(sessions, model).reply(waiting.requests[0].approve()).result()).status == "complete"
    await second.ended()
    await sessions.store.open_turns.finish()
    resumed = await runner(sessions, model).take_up()
    if resumed is not None:
        await resumed.ended()
    assert [message.status for message in sessions.messages] == ["complete", "complete", "complete", "cancelled"]


async def test_stopping_the_question_closes_its_requests_and_runs_the_next_message(sessions: Busily) -> None:
    model, second, _ = await queued_behind(sessions, "Two.")
    assert await runner(sessions, model).stop("m1")
    assert (await second.result()).text == "Two."
    await second.ended()
    assert sessions.messages[1].status == "cancelled"


async def test_a_stop_of_a_message_that_has_joined_closes_what_is_asked(sessions: Busily) -> None:
    gate = Gate()
    model = ScriptedModel(["Hm. ", gate], REFUND)
    first = await runner(sessions, model).start(ask("m1"))
    await gate.reached()
    second = await runner(sessions, model).start(ask("m2", "steer"))
    await sessions.polled()
    gate.set()
    assert (await first.result()).status == "waiting"
    await asyncio.gather(first.ended(), second.ended())
    assert not await runner(sessions, model).stop("m3")
    assert await runner(sessions, model).stop("m2")
    assert sessions.messages[-1].status == "cancelled"


async def test_a_turn_that_goes_on_is_stopped_and_joined_by_every_message_that_it_answers(sessions: Busily) -> None:
    gates = Gate(), Gate()
    model = ScriptedModel(["Hm. ", gates[0]], REFUND, ["Done", gates[1], "."])
    first = await runner(sessions, model).start(ask("m1"))
    await gates[0].reached()
    second = await runner(sessions, model).start(ask("m2", "steer"))
    await sessions.polled()
    gates[0].set()
    request = (await first.result()).requests[0]
    await asyncio.gather(first.ended(), second.ended())
    going_on = await runner(sessions, model).reply(request.approve())
    await gates[1].reached()
    again = [await runner(sessions, model).start(each) for each in (ask("m1"), ask("m2"), ask("m1", "queue"))]
    assert not await runner(sessions, model).stop("m3")
    assert await runner(sessions, model).stop("m1")
    assert [(await each.result()).message_id for each in again] == [request.message_id] * 3
    await asyncio.gather(going_on.ended(), *(each.ended() for each in again))
    assert sessions.messages[-1].status == "cancelled"
    assert len(sessions.messages) == 2


async def test_a_steering_message_that_came_too_late_joins_the_answer_when_it_goes_on(sessions: Busily) -> None:
    gates = Gate(), Gate()
    model = ScriptedModel([gates[0], REFUND], ["Done", gates[1], ". "], "In short: done.")
    first = await runner(sessions, model).start(ask("m1"))
    await gates[0].reached()
    second = await runner(sessions, model).start(ask("m2", "steer"))
    await sessions.posted("m2")
    gates[0].set()
    request = (await first.result()).requests[0]
    going_on = await runner(sessions, model).reply(request.approve())
    await gates[1].reached()
    await sessions.polled()
    gates[1].set()
    assert (await second.result()).message_id == request.message_id
    await asyncio.gather(going_on.ended(), second.ended())
    at_first = [("", "", "…"), ("m2", "m2?", "joined"), ("", "Done. ", "complete")]
    later = [("", "Done. ", "…"), ("m2", "m2?", "joined"), ("", "In short: done.", "complete")]
    assert sessions.history[1:] in (at_first, later), "it depends on which comes first, a tick or the model's call"


@pytest.mark.usefixtures("impatient")
async def test_a_message_is_answered_when_what_was_asked_before_it_has_expired(
    sessions: Busily, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, second, _ = await queued_behind(sessions, "Two.")
    await second.ended()
    move_clock(monkeypatch, days=61)
    resumed = await runner(sessions, model).resume()
    assert resumed is not None
    assert (await resumed.result()).text == "Two."
    await resumed.ended()
    assert sessions.messages[1].metadata["stopReason"] == "expired"


@pytest.mark.usefixtures("impatient")
async def test_a_regeneration_replaces_what_is_asked_and_the_messages_behind_it_are_answered_then(
    sessions: Busily,
) -> None:
    model, second, waiting = await queued_behind(sessions, "Without it.", "Two.")
    await second.ended()
    regenerated = await runner(sessions, model).start(Query(regenerate=True, replaces=waiting.message_id))
    assert (await regenerated.result()).text == "Without it."
    await regenerated.ended()
    await take_up(sessions, model)
    assert said(sessions) == [("m1", "m1?"), ("", "Without it."), ("m2", "m2?"), ("", "Two.")]
    with pytest.raises((NotWaiting, UnknownRequest)):
        await runner(sessions, model).reply(waiting.requests[0].approve(), message_id=waiting.message_id)


@pytest.mark.parametrize("regenerate", [False, True])
async def test_a_message_that_is_held_up_and_sent_again_waits_on_and_closes_nothing(
    sessions: Busily, regenerate: bool
) -> None:
    model, second, waiting = await queued_behind(sessions, "Done.", "Two.")
    again = await runner(sessions, model).start(replace(ask("m2"), regenerate=regenerate))
    await runner(sessions, model).reply(waiting.requests[0].approve()).result()
    assert [(await stream.result()).text for stream in (second, again)] == ["Two.", "Two."]
    await asyncio.gather(second.ended(), again.ended())
    assert said(sessions) == [("m1", "m1?"), ("", "Hm. Done."), ("m2", "m2?"), ("", "Two.")]


async def test_deleting_the_session_reaches_a_message_that_is_held_up(sessions: Busily) -> None:
    model, second, _ = await queued_behind(sessions)
    assert await runner(sessions, model).erase_session()
    assert [event["type"] for event in sse.decode(b"".join([f async for f in second.sse()]))] == ["error"]
    await second.ended()
