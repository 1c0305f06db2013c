"""Turns of a chain of models that fail: one answer, each tool once, and nothing left of what was withdrawn."""

import asyncio
import time
from typing import Any

import pytest

from omniagent import Agent, RunResult, tool
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers.fallback import FallbackProvider
from omniagent.errors import BudgetExceeded, ModelUnavailable
from omniagent.messages import StepPart, TextPart, ToolPart
from omniagent.providers import LLMProvider, ProviderPool
from omniagent.settings import Budget
from omniagent.testing import Gate, ScriptedModel, ToolCall
from tests.providers.canned import reply, serve
from tests.providers.helpers import ask, streamed, text_of
from tests.runner.sessions import Sessions, moved_loop

APIS = ("responses", "chat", "messages")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def of(*models: LLMProvider, **options: Any) -> TurnOperator:
    return TurnOperator(Agent("helper", "", [add]), Sessions().session(), provider=FallbackProvider(models), **options)


async def test_the_metadata_names_the_models_that_wrote_the_answer() -> None:
    call = ToolCall("add", {"a": 1, "b": 2})
    first = ScriptedModel([call], ["The", ModelUnavailable()], model="first")
    result = await of(first, ScriptedModel("Three.", model="second")).run("Add.")
    assert result.text == "Three."
    assert result.message.metadata["model"] == "second"
    assert result.message.metadata["models"] == ["first", "second"]

    result = await of(ScriptedModel(ModelUnavailable()), ScriptedModel("Three.", model="second")).run("Add.")
    assert result.message.metadata["model"] == "second"
    assert "models" not in result.message.metadata


async def test_a_call_of_a_failed_model_is_withdrawn_and_not_run() -> None:
    call = ToolCall("add", {"a": 1, "b": 2})
    failed = ScriptedModel(["Let me add.", call, ModelUnavailable()])
    result = await of(failed, ScriptedModel([call], "Three.")).run("Add.")
    assert [type(part) for part in result.parts] == [StepPart, ToolPart, StepPart, TextPart]
    assert (result.text, result.tool_calls) == ("Three.", 1)


async def test_what_a_failed_model_wrote_is_counted() -> None:
    plain = await of(ScriptedModel("Three.")).run("Add.")
    failed = ScriptedModel(["Three and more.", ModelUnavailable()])
    replaced = await of(failed, ScriptedModel("Three.")).run("Add.")
    assert replaced.usage.output_tokens > plain.usage.output_tokens
    assert replaced.usage.estimated


async def test_a_budget_that_a_failed_model_used_up_ends_the_turn() -> None:
    second = ScriptedModel("Three.")
    failed = ScriptedModel(["Three and more. " * 100, ModelUnavailable()])
    result = await of(failed, second, budget=Budget(tokens_per_day=50)).run("Add.")
    assert (result.status, type(result.error)) == ("failed", BudgetExceeded)
    assert second.requests == []


def test_a_chain_ends_with_its_turns_time() -> None:
    async def ended() -> RunResult:
        gate = Gate()
        models = ScriptedModel(ModelUnavailable()), ScriptedModel(["One", gate, " two."]), ScriptedModel("Three.")
        turn = await of(*models).start("Add.", deadline=time.monotonic() + 600)
        await gate.reached()
        with moved_loop(600):
            await turn.ended()
        assert models[2].requests == []
        return await turn.result()

    result = asyncio.run(ended())
    assert (result.status, result.text, result.message.metadata["stopReason"]) == ("cancelled", "One", "deadline")


@pytest.mark.parametrize("api", APIS)
async def test_a_throttled_model_is_not_waited_for(api: str) -> None:
    busy = reply(429, {"error": {"message": "slow down"}}).replace(b"\r\n\r\n", b"\r\nretry-after: 30\r\n\r\n", 1)
    name = "anthropic/claude-sonnet-5-5" if api == "messages" else f"openai-{api}/any"
    async with serve(busy) as server:
        by_vendor: Any = {vendor: {"base_url": server.base_url} for vendor in ("openai", "anthropic")}
        pool = ProviderPool(registrations={"next": ScriptedModel("Three.")}, by_vendor=by_vendor)
        assert text_of(await streamed(pool.get([name, "next"]), ask("Add."))) == "Three."
        await pool.aclose()
    assert len(server.heads) == 1
