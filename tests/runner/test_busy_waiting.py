"""Messages in line behind a turn that waits for an approval."""

from dataclasses import replace
from typing import get_args

import pytest

from omniagent import AnswerStream, RunResult
from omniagent.ai.operator import TurnOperator
from omniagent.errors import NotWaiting, TurnInProgress
from omniagent.protocol import sse
from omniagent.settings import Busy
from omniagent.testing import Gate, ScriptedModel
from omniagent.turns.engine import following
from tests.fixtures.live_turns import begin_turn
from tests.runner.sessions import REFUND, Refunds, Sessions, ask, texts_of


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request waits for long."""
    monkeypatch.setattr(following, "FOLLOW_SECONDS", 0.01)


def runner(sessions: Sessions, model: ScriptedModel) -> TurnOperator:
    return sessions.runner(model, Refunds().tool)


async def queued_behind(sessions: Sessions, *answers: str) -> tuple[ScriptedModel, AnswerStream, RunResult]:
    """Queue m2 while m1 is answered, whose answer then waits. Returns the stream of m2 and what m1 asks."""
    gate = Gate()
    model = ScriptedModel(["Hm. ", gate, REFUND], *answers)
    first = await runner(sessions, model).start(ask("m1"))
    await gate.reached()
    second = await runner(sessions, model).start(ask("m2", "queue"))
    await sessions.posted("m2")
    gate.set()
    waiting = await first.result()
    assert waiting.status == "waiting"
    return model, second, waiting


async def take_up(sessions: Sessions, model: ScriptedModel) -> None:
    """Do what a session needs, as the sweep does."""
    answer = await runner(sessions, model).take_up()
    assert answer is not None
    await answer.ended()


def said(sessions: Sessions) -> list[tuple[str, str]]:
    return [line[:2] for line in sessions.history]


async def test_a_message_that_was_queued_before_waits_for_the_answer_and_is_answered_then(sessions: Sessions) -> None:
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


@pytest.mark.usefixtures("impatient")
async def test_a_blocked_message_frees_its_request_and_is_answered_after_the_approval(sessions: Sessions) -> None:
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


@pytest.mark.parametrize("busy", get_args(Busy))
async def test_a_new_message_closes_what_is_asked_and_is_answered_after_those_that_waited(
    sessions: Sessions, busy: Busy
) -> None:
    model, second, waiting = await queued_behind(sessions, "Two.", "Three.")
    third = await runner(sessions, model).start(ask("m3", busy))
    texts = await texts_of(second, third)
    assert [message_id for message_id, _ in said(sessions) if message_id] == ["m1", "m2", "m3"]
    if busy != "steer":  # that one may join the answer to m2
        assert texts == ["Two.", "Three."]
    closed = sessions.messages[1]
    assert (closed.status, closed.metadata["stopReason"]) == ("cancelled", "unanswered")
    with pytest.raises(NotWaiting):
        await runner(sessions, model).reply(waiting.requests[0].approve(), message_id=waiting.message_id)


async def test_a_message_that_found_a_dead_turn_closes_what_that_then_asks(sessions: Sessions) -> None:
    await begin_turn(sessions.session(), "m1?", is_dead=True)
    result = await runner(sessions, ScriptedModel(["Hm. ", REFUND], "Two.")).run(ask("m2"))
    assert result.text == "Two."
    closed = sessions.messages[1]
    assert (closed.status, closed.metadata["stopReason"]) == ("cancelled", "unanswered")
    assert said(sessions) == [("m1", "m1?"), ("", "Hm. "), ("m2", "m2?"), ("", "Two.")]


async def test_a_stop_closes_what_is_asked_and_stops_what_waits(sessions: Sessions) -> None:
    model, second, _ = await queued_behind(sessions)
    assert await runner(sessions, model).stop()
    assert (await second.result()).status == "cancelled"
    await second.ended()
    assert [message.status for message in sessions.messages] == ["complete", "cancelled", "complete", "cancelled"]
    assert not await runner(sessions, model).stop()


async def test_a_stop_of_a_message_that_is_held_up_leaves_what_is_asked(sessions: Sessions) -> None:
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


@pytest.mark.parametrize("regenerate", [False, True])
async def test_a_message_that_is_held_up_and_sent_again_waits_on_and_closes_nothing(
    sessions: Sessions, regenerate: bool
) -> None:
    model, second, waiting = await queued_behind(sessions, "Done.", "Two.")
    again = await runner(sessions, model).start(replace(ask("m2"), regenerate=regenerate))
    await runner(sessions, model).reply(waiting.requests[0].approve()).result()
    assert await texts_of(second, again) == ["Two.", "Two."]
    assert said(sessions) == [("m1", "m1?"), ("", "Hm. Done."), ("m2", "m2?"), ("", "Two.")]
