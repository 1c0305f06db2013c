"""P12: the prompt only grows, also where instructions change."""

from itertools import count

from omniagent import Agent, RunContext, tool
from omniagent.ai.operator import TurnOperator
from omniagent.messages import ChatMessage
from omniagent.testing import ScriptedModel, ToolCall
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
    runner = TurnOperator(agent, Sessions().session(), provider=model)
    for question in ("Add one.", "Thanks."):
        await runner.run(question)
    first, second, third = (request.messages for request in model.requests)
    assert [request.instructions for request in model.requests] == ["Be brief.\n\nBe kind."] * 3
    assert first == [ChatMessage.user("Add one."), ChatMessage.system("This is day 1.")]
    assert second[: len(first)] == first
    assert third[0] == first[0]
    assert third[-2:] == [ChatMessage.user("Thanks."), ChatMessage.system("This is day 2.")]
    assert [message.role for message in third] == ["user", "assistant", "user", "system"]
