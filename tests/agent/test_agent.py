"""The tests of your agent: with neither server nor network nor key.

`ScriptedModel` plays the model's answers, and everything between it and the stored session is what runs on Lambda.
"""

import uuid

import pytest

from agent import agent, calculator, refund
from omniagent import InMemorySessionManager, RunContext, Runner, ToolError
from omniagent.testing import ScriptedModel, ToolCall


def runner(*answers: str | ToolCall) -> Runner:
    return Runner(agent, InMemorySessionManager("ada", uuid.uuid4().hex), provider=ScriptedModel(*answers))


def test_a_tool_is_tested_as_a_function() -> None:
    assert calculator("(3 + 4) * 6") == "42"
    with pytest.raises(ToolError, match="no finite value"):
        calculator("1 / 0")
    assert refund(7, 20, RunContext(user="ada", call_id="c1")) == "Refunded 20.00 euros for order 7 (payment c1)."


async def test_a_small_refund_runs_at_once() -> None:
    result = await runner(ToolCall("refund", {"order": 7, "euros": 20}), "Done.").run("Refund 20 euros of order 7.")
    assert (result.status, result.text) == ("complete", "Done.")


async def test_a_large_refund_waits_for_approval() -> None:
    chat = runner(ToolCall("refund", {"order": 7, "euros": 80}), "Done.")
    result = await chat.run("Refund 80 euros of order 7.")
    assert result.status == "waiting"
    [request] = result.requests
    assert request.reason == "Refunds of more than 50 euros need approval."
    result = await chat.reply(request.approve()).result()
    assert (result.status, result.text) == ("complete", "Done.")
