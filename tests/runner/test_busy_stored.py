"""A message while a turn runs, with MongoDB and DynamoDB."""

import asyncio

import pytest

from omniagent import Agent, Query, TurnRegistry
from omniagent.protocol import sse
from omniagent.testing import Gate, ScriptedModel
from omniagent.turns.registry import Signals
from tests.fixtures.conversation import Conversation, read
from tests.runner.sessions import until

pytestmark = pytest.mark.parametrize("registry", ["dynamodb"], indirect=True)


def talk(conversation: Conversation, registry: TurnRegistry, *script: object) -> Conversation:
    model = ScriptedModel(*script)  # type: ignore[arg-type]
    return conversation.but(registry=registry, provider=model, agent=Agent("helper", ""))


async def test_messages_queue_steer_and_interrupt_and_are_stored_once_and_in_order(
    conversation: Conversation, registry: TurnRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_gate, second_gate, third_gate = Gate(), Gate(), Gate()
    chat = talk(
        conversation,
        registry,
        ["One", first_gate, "."],
        ["Shorter", second_gate, "."],
        ["Two", third_gate, "."],
        "Three.",
    )
    first = await chat.start(Query("m1?", "m1"))
    await first_gate.reached()
    queued = await chat.start(Query("m2?", "m2", busy="queue"))
    steering = await chat.start(Query("Short, please: ü", "m3", busy="steer"))

    looks, signals = [0], registry.signals

    async def counted(session: str, journal: str) -> Signals:
        looks[0] += 1
        return await signals(session, journal)

    async def has_looked() -> bool:
        return looks[0] > 1  # the second look began after the message was in line

    monkeypatch.setattr(registry, "signals", counted)
    await until(has_looked)
    first_gate.set()
    await second_gate.reached()
    second_gate.set()
    await third_gate.reached()
    interrupting = await chat.start(Query("m4?", "m4", busy="interrupt"))
    streams = await asyncio.gather(*(read(stream) for stream in (first, queued, steering, interrupting)))
    await asyncio.gather(*(stream.ended() for stream in (first, queued, steering, interrupting)))
    stored = [(message["turn_number"], message["role"], message["status"]) for message in chat.messages]
    assert stored == [
        (1, "user", "complete"),
        (1, "assistant", "complete"),
        (2, "user", "complete"),
        (2, "assistant", "cancelled"),
        (3, "user", "complete"),
        (3, "assistant", "complete"),
    ]
    assert [message["client_message_id"] for message in chat.messages if message["role"] == "user"] == [
        "m1",
        "m2",
        "m4",
    ]
    parts = [part["type"] for part in chat.messages[1]["parts"]]
    assert parts == ["step-start", "text", "steering", "step-start", "text"]
    ids = [next(sse.decode(stream))["messageId"] for stream in streams]
    assert ids[0] == ids[2] == chat.messages[1]["client_message_id"]
    assert len(set(ids)) == 3
    assert chat.document["turn"] is None
    retried = await read(await chat.start(Query("Short, please: ü", "m3")))
    assert next(sse.decode(retried))["messageId"] == ids[0]
    assert len(chat.messages) == 6
