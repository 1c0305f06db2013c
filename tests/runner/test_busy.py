"""A message while a turn runs: rejected, queued, steering or interrupting."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from omniagent import Gate, Query, ScriptedModel, ToolCall, tool
from omniagent.ai.result import AnswerStream, RunResult
from omniagent.errors import TurnInProgress
from omniagent.messages import SteeringPart, TextPart
from omniagent.protocol import sse
from omniagent.session.manager import SessionMessage
from omniagent.settings import Busy
from tests.runner.sessions import Sessions


class Busily(Sessions):
    """One session, and what is stored in it."""

    @property
    def history(self) -> list[tuple[str, str, str]]:
        """Every message in order: its id, what it says, how it ended. An answer's own id is left out."""
        return [line for message in self.messages for line in _lines(message)]

    @property
    def messages(self) -> list[SessionMessage]:
        return self.store.sessions[self.session().key].messages

    async def posted(self, *message_ids: str) -> None:
        """Wait until exactly these messages are in the inbox."""
        async with asyncio.timeout(10):
            while await self.waiting() != list(message_ids):  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(0.002)

    async def waiting(self) -> list[str]:
        held = await self.registry.running(self.session().key)
        return [] if held is None else [message.id for message in held.inbox]


def _lines(message: SessionMessage) -> list[tuple[str, str, str]]:
    if message.role == "user":
        return [(message.id, message.text, message.status)]
    lines = []
    text = ""
    for part in message.parts:
        if isinstance(part, SteeringPart):
            lines += [("", text, "…"), (part.message_id, part.text, "joined")]
            text = ""
        elif isinstance(part, TextPart):
            text += part.text
    return [*lines, ("", text, message.status)]


def ask(message_id: str, busy: Busy | None = None) -> Query:
    return Query(f"{message_id}?", message_id, busy=busy)


async def read(stream: AnswerStream) -> list[dict[str, object]]:
    return list(sse.decode(b"".join([frames async for frames in stream.sse()])))


@pytest.fixture
async def sessions() -> AsyncIterator[Busily]:
    sessions = Busily()
    async with asyncio.timeout(20):
        yield sessions
    assert await sessions.are_free()


async def test_a_message_is_rejected_unless_it_says_otherwise(sessions: Busily) -> None:
    gate = Gate()
    runner = sessions.runner(ScriptedModel(["One", gate, "."]))
    first = await runner.start(ask("m1"))
    await gate.reached()
    for busy in (None, "reject"):
        with pytest.raises(TurnInProgress):
            await runner.start(ask("m2", busy))  # type: ignore[arg-type]  # mypy widens the tuple
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

    model = ScriptedModel(["Looking. ", ToolCall("look")], "A short answer.")
    first = await sessions.runner(model, look).start(ask("m1"))
    await reached.wait()
    second = await sessions.runner(model, look).start(ask("m2", "steer"))
    await _renewed(sessions, "m2")
    going_on.set()
    events, followed = await asyncio.gather(read(first), read(second))
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


async def _renewed(sessions: Busily, *message_ids: str) -> None:
    """Wait until the turn has seen these messages: two renewals after they were posted."""
    await sessions.posted(*message_ids)
    for _ in range(2):
        held = await sessions.registry.running(sessions.session().key)
        assert held is not None
        async with asyncio.timeout(10):
            while (now := await sessions.registry.running(sessions.session().key)) is not None:
                if now.lease_until != held.lease_until:
                    break
                await asyncio.sleep(0.002)
