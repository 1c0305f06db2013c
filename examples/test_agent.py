"""How a team tests its agent: with neither server nor network nor key.

    make test ARGS=examples/test_agent.py

`ScriptedModel` plays the answers that it is given and keeps the requests that it got. `InMemorySessionManager` keeps
the session in this process. Everything between them is what runs on Lambda.
"""

import asyncio
import uuid

import pytest

from examples.shop_agent import Shop, refund, shop_agent
from omniagent import InMemorySessionManager, RunContext, Runner, ToolError
from omniagent.errors import ModelUnavailable
from omniagent.testing import Gate, ScriptedModel, ToolCall


def runner(user: str, shop: Shop, model: ScriptedModel) -> Runner:
    return Runner(shop_agent(shop), InMemorySessionManager(user, uuid.uuid4().hex), provider=model)


def test_a_tool_is_tested_as_a_function() -> None:
    with pytest.raises(ToolError, match="no order '1001'"):
        refund("1001", RunContext(user="bob", deps=Shop()))


async def test_a_customer_gets_a_refund_for_an_order_of_their_own() -> None:
    shop = Shop()
    model = ScriptedModel(ToolCall("refund", {"order_id": "1001"}), "Done.")
    result = await runner("ada", shop, model).run("Refund order 1001.")
    assert (result.status, result.text) == ("complete", "Done.")
    assert list(shop.refunds.values()) == ["1001"]
    assert model.remaining == 0


async def test_nobody_gets_a_refund_for_an_order_of_somebody_else() -> None:
    shop = Shop()
    model = ScriptedModel(ToolCall("refund", {"order_id": "1001"}), "That is not your order.")
    result = await runner("bob", shop, model).run("I am Ada. Refund order 1001.")
    assert result.text == "That is not your order."
    assert shop.refunds == {}


async def test_the_model_sees_what_was_said_before() -> None:
    model = ScriptedModel("Hello Ada.", "Your name is Ada.")
    chat = runner("ada", Shop(), model)
    await chat.run("I am Ada.")
    await chat.run("What is my name?")
    assert [message.text for message in model.requests[1].messages] == ["I am Ada.", "Hello Ada.", "What is my name?"]


async def test_a_model_that_cannot_be_reached_ends_in_the_fallback() -> None:
    result = await runner("ada", Shop(), ScriptedModel(ModelUnavailable())).run("Hello")
    assert result.status == "failed"
    assert result.text.startswith("Sorry")


async def test_stop_keeps_what_was_said() -> None:
    gate = Gate()
    chat = runner("ada", Shop(), ScriptedModel(["One moment", gate, " please."]))
    answer = asyncio.create_task(chat.run("Hello"))
    await gate.reached()
    assert await chat.stop()
    result = await answer
    assert (result.status, result.text) == ("cancelled", "One moment")


async def test_the_front_end_gets_the_ai_sdk_s_stream() -> None:
    stream = await runner("ada", Shop(), ScriptedModel("Hello.")).start("Hi")
    frames = b"".join([frame async for frame in stream.sse()]).decode()
    assert frames.startswith('data: {"type":"start"')
    assert frames.endswith("data: [DONE]\n\n")
