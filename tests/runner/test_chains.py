"""Turns of a chain of models that fail: one answer, each tool once, and nothing left of what was withdrawn."""

import asyncio
import json
import random
import time
import uuid
from collections import Counter
from itertools import count, permutations
from typing import Any

import pytest

from omniagent import Agent, AnswerStream, RunResult, tool
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers import get_llm_provider
from omniagent.ai.providers.fallback import FallbackProvider
from omniagent.errors import BudgetExceeded, ModelUnavailable
from omniagent.messages import StepPart, TextPart, ToolPart
from omniagent.protocol.events import ResetStep, TextDelta
from omniagent.providers import LLMProvider, ProviderPool
from omniagent.settings import Budget
from omniagent.testing import Gate, ScriptedModel, ToolCall
from tests.fixtures.examples import examples
from tests.providers.canned import HANG_UP, Json, frames, reply, saying, serve, stream
from tests.providers.helpers import ask, streamed, text_of
from tests.runner.sessions import Sessions, moved_loop

APIS = ("responses", "chat", "messages")
FAULTS = examples(1_000)
TURNS_OF_A_SESSION = 5
ANSWER = ["Let me add.", "The sum is 3."]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def answer_of(api: str, body: Json) -> list[bytes]:
    """The frames of the step that this request asks for: a call of the tool, or the answer."""
    last = body["input" if api == "responses" else "messages"][-1]
    is_second = "output" in last or last.get("role") == "tool" or "tool_result" in json.dumps(last)
    call = (f"call_{uuid.uuid4().hex}", "add", '{"a": 1, "b": 2}')
    return saying(api, ANSWER[is_second], call=None if is_second else call)


class FaultyServer:
    """Serves three APIs. At most two requests in a row fail, so that a chain of three always gets an answer."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._left = 0
        self._failed: tuple[str, str] | None = None
        self.faults = 0
        self.seen: set[tuple[str, str, str]] = set()
        """When a request failed, its API, and that of the next one."""

    def answer(self, path: str, body: Json) -> bytes:
        api = next(name for name in APIS if name in path)
        if self._failed is not None:
            self.seen.add((*self._failed, api))
        if not self._left:
            self._left, self._failed = self._random.randint(0, 2), None
            return stream(answer_of(api, body))
        self._left -= 1
        self.faults += 1
        when, fault = self._fault(answer_of(api, body))
        self._failed = (when, api)
        return fault

    def _fault(self, whole: list[bytes]) -> tuple[str, bytes]:
        choose = self._random.choice
        error = {"error": {"type": "server_error", "message": "down"}}
        match choose(("before", "at", "after")):
            case "before":
                return "before", choose([HANG_UP, *(reply(status, error) for status in (400, 401, 429, 500, 503))])
            case "at":
                exception = reply(200, {"Output": {"__type": "com.amazon#UnknownOperationException"}})
                garbage = stream([b"data: nothing\n\n"])
                return "at", choose([stream([], end=False) + HANG_UP, garbage, exception])
        shown = whole[: self._random.randint(1, len(whole) - 2)]
        if choose((True, False)):
            return "after", stream([*shown, *frames([{"type": "error", **error}])])
        rest = b"".join(whole[len(shown) :])
        cut = rest[: self._random.randint(0, rest.index(b"\n\n"))]
        return "after", stream([*shown, *([cut] if cut else [])], end=False) + HANG_UP


def provider_of(api: str, base_url: str) -> LLMProvider:
    name = "anthropic/claude-sonnet-5-5" if api == "messages" else f"openai-{api}/any"
    return get_llm_provider(name, base_url=base_url, max_retries=0)


async def shown_text(answer: AnswerStream[Any]) -> str:
    """The text that a client shows, which drops what a step has shown when it is told to."""
    steps = [""]
    async for event in answer:
        if event.type == "start-step":
            steps.append("")
        elif isinstance(event, ResetStep):
            steps[-1] = ""
        elif isinstance(event, TextDelta):
            steps[-1] += event.delta
    return "|".join(steps[1:])


async def test_a_chain_of_three_survives_random_faults() -> None:
    faulty, runs = FaultyServer(seed=27), Counter[str]()

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        runs["add"] += 1
        return a + b

    agent = Agent("helper", "Be helpful.", [add])
    async with serve(faulty.answer) as server:
        clock = count(step=1_000).__next__  # no circuit stays open
        orders = [[provider_of(api, server.base_url) for api in order] for order in permutations(APIS)]
        chains = [FallbackProvider(providers, clock=clock) for providers in orders]
        turns = 0
        while faulty.faults < FAULTS:
            sessions, chain = Sessions(), chains[turns // TURNS_OF_A_SESSION % len(chains)]
            for _ in range(TURNS_OF_A_SESSION):
                turns += 1
                runner = TurnOperator(agent, sessions.session(), provider=chain, registry=sessions.registry)
                answer = await runner.start(f"Question {turns}?")
                assert await shown_text(answer) == "|".join(ANSWER)
                result = await answer.result()
                kinds = [type(part) for part in result.parts]
                assert kinds == [StepPart, TextPart, ToolPart, StepPart, TextPart]
                assert [part.output for part in result.parts if isinstance(part, ToolPart)] == [3]
                assert (result.status, runs["add"]) == ("complete", turns)
            roles = [message.role for message in await runner.history()]
            assert roles == ["user", "assistant"] * TURNS_OF_A_SESSION
        for chain in chains:
            await chain.aclose()
    pairs = {(when, *pair) for when in ("before", "at", "after") for pair in permutations(APIS, 2)}
    assert pairs <= faulty.seen


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
