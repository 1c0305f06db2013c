"""P12: the prompt only grows, also where instructions change, and a summary begins with it."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from pydantic import BaseModel

from omniagent import Agent, Overrides, RunContext, tool
from omniagent.ai.prompts import SUMMARIZE, SUMMARIZE_ABOVE
from omniagent.messages import ChatMessage
from omniagent.providers import FallbackProvider, ModelRequest
from omniagent.session.window import estimate_request
from omniagent.testing import ScriptedModel, ToolCall
from tests.fixtures.conversation import QUICK
from tests.runner.sessions import Sessions


@tool
def add(a: int) -> int:
    """Add one."""
    return a + 1


async def test_changing_instructions_are_made_once_and_follow_the_question() -> None:
    days = count(1)

    def today(_: RunContext) -> str:
        return f"This is day {next(days)}."

    model = ScriptedModel([ToolCall("add", {"a": 1})], "Two.", "Bye.")
    agent = Agent("helper", ["Be brief.", today, "Be kind."], [add])
    runner = Sessions().runner(model, agent=agent)
    for question in ("Add one.", "Thanks."):
        await runner.run(question)
    first, second, third = (request.messages for request in model.requests)
    assert [request.instructions for request in model.requests] == ["Be brief.\n\nBe kind."] * 3
    assert first == [ChatMessage.user("Add one."), ChatMessage.system("This is day 1.")]
    assert second[: len(first)] == first
    assert third[0] == first[0]
    assert third[-2:] == [ChatMessage.user("Thanks."), ChatMessage.system("This is day 2.")]
    assert [message.role for message in third] == ["user", "assistant", "user", "system"]


class Cheap(ScriptedModel):
    """A model with a prompt cache."""

    def cached_price(self, overrides: Overrides) -> float:
        return 0.1


class Ticket(BaseModel):
    title: str = "none"


async def talked(model: ScriptedModel, turns: int = 6, **options: Any) -> list[ModelRequest]:
    """Talk until a summary was due, and return the requests for summaries."""
    agent = Agent("helper", ["Be brief.", lambda _: "This is day 1."], [add], **options)
    sessions = Sessions(replace(QUICK, context_max_turns=6))
    runner = sessions.runner(model, agent=agent)
    for number in range(turns):
        answer = await runner.start(f"Question {number}? {'word ' * 100}")
        await answer.ended()
    summary = (await sessions.session().load()).summary
    assert summary is not None
    assert summary.content == "A summary."
    return [request for request in model.requests if request.purpose == "summary"]


async def test_a_summary_begins_with_the_prompt_of_the_answer_beside_it() -> None:
    model = Cheap(default="Yes.")
    summaries = await talked(model, turns=12, overrides=Overrides(max_output_tokens=20))
    answers = [request for request in model.requests if request.purpose == "answer"]
    for request in summaries:
        *shared, asked = request.messages
        assert asked == ChatMessage.user(SUMMARIZE_ABOVE)
        [beside] = [answer for answer in answers if list(answer.messages[:-2]) == shared]
        assert request.overrides == Overrides(), "an answer's length does not limit a summary"
        assert (request.instructions, request.tools) == (beside.instructions, beside.tools)
        assert request.cache_key == beside.cache_key
    assert len(summaries) > 1


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (ScriptedModel(default="Yes."), {}),
        (Cheap(default="Yes."), {"summary": Overrides(model="small")}),
        (Cheap(default="Yes."), {"overrides": Overrides(extra={"reasoning": {"effort": "high"}})}),
        (Cheap(default="{}"), {"output": Ticket}),
    ],
    ids=["no cache", "another model", "reasoning", "typed answers"],
)
async def test_a_summary_that_would_not_be_cheaper_is_of_its_turns_alone(
    model: ScriptedModel, options: dict[str, Any]
) -> None:
    for request in await talked(model, **options):
        assert (request.instructions, len(request.messages)) == (SUMMARIZE, 1)


async def test_a_model_that_gives_no_summary_is_asked_for_its_turns_alone() -> None:
    def summary(request: ModelRequest) -> str:
        return "" if request.instructions == "Be brief." else "A summary."

    first, second = await talked(Cheap(default="Yes.", summary=summary))
    assert (first.instructions, second.instructions) == ("Be brief.", SUMMARIZE)


async def test_no_prompt_is_larger_than_half_of_what_the_models_can_read() -> None:
    class Small(ScriptedModel):
        def context_window(self, overrides: Overrides) -> int:
            return 2_000

    small = Small(default="Yes.")
    chain = FallbackProvider([small, ScriptedModel()])
    runner = Sessions().runner(chain)
    for number in range(20):
        await (await runner.start(f"Question {number}? {'word ' * 100}")).ended()
    sizes = [estimate_request(request) for request in small.requests]
    assert 800 < max(sizes) <= 1_100
