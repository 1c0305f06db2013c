"""The scripted model plays what it is given, and says so when there is nothing left to play."""

import asyncio

import pytest

from omniagent import Agent, InMemorySessionManager, Runner, tool
from omniagent.ai.providers.llm_provider import (
    ModelFinish,
    ModelRequest,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
)
from omniagent.ai.providers.model_calls import complete
from omniagent.ai.providers.scripted import Answer, Gate, ScriptedModel, ToolCall
from omniagent.errors import ConfigurationError, ModelUnavailable, ToolFailed
from omniagent.messages import ChatMessage, ToolPart, Usage
from tests.providers.helpers import ask, finish_of, only, streamed, text_of


async def test_each_call_takes_the_next_item() -> None:
    model = ScriptedModel("Hello  there.\n", ToolCall("add", {"a": 1}), ModelUnavailable("down"))
    assert await streamed(model, ask("Add one.")) == [
        ModelText("Hello"),
        ModelText("  there."),
        ModelText("\n"),
        ModelFinish("stop", Usage(4, 3)),
    ]
    assert await streamed(model, ask("Again.")) == [
        ModelToolStart("call_1", "add"),
        ModelToolDelta("call_1", '{"a": 1}'),
        ModelToolCall("call_1", "add", '{"a": 1}'),
        ModelFinish("tool-calls", Usage(3, 3)),
    ]
    assert model.remaining == 1
    with pytest.raises(ModelUnavailable, match="down"):
        await streamed(model, ask("Once more."))
    assert [request.messages[-1].text for request in model.requests] == ["Add one.", "Again.", "Once more."]
    assert (model.remaining, model.running) == (0, 0)


async def test_one_answer_may_have_several_things_and_an_end_of_its_own() -> None:
    end = ModelFinish("length", Usage(1, 2))
    model = ScriptedModel(["One moment.", ToolCall("add", "{broken"), ToolCall("add", call_id="mine"), end])
    events = await streamed(model, ask("Add."))
    assert text_of(events) == "One moment."
    assert only(events, ModelToolCall) == [
        ModelToolCall("call_1", "add", "{broken"),
        ModelToolCall("mine", "add", "{}"),
    ]
    assert only(events, ModelFinish) == [end]


async def test_a_call_has_an_id_that_the_conversation_does_not_have() -> None:
    called = ChatMessage(role="assistant", parts=[ToolPart(call_id=f"call_{n}", name="add") for n in (1, 2)])
    request = ModelRequest("", [ChatMessage.user("Add."), called])
    (call,) = only(await streamed(ScriptedModel(ToolCall("add")), request), ModelToolCall)
    assert call.call_id == "call_3"


async def test_an_item_may_be_a_function_of_the_request() -> None:
    async def later(request: ModelRequest) -> Answer:
        return ["You said ", request.messages[-1].text]

    model = ScriptedModel(lambda request: request.instructions, later)
    assert text_of(await streamed(model, ask("Hi."))) == "Be brief."
    assert text_of(await streamed(model, ask("Hi."))) == "You said Hi."


async def test_a_gate_holds_the_answer_until_it_is_set() -> None:
    gate = Gate()
    model = ScriptedModel(["Hello", gate, " there."])
    reading = asyncio.create_task(streamed(model, ask("Hi.")))
    await gate.reached()
    assert (model.running, reading.done()) == (1, False)
    gate.set()
    assert text_of(await reading) == "Hello there."


async def test_a_script_that_is_used_up_says_what_to_add() -> None:
    model = ScriptedModel("Hello.")
    await streamed(model, ask("Hi."))
    with pytest.raises(ConfigurationError, match=r"1 answers.*default=.*'What now\?'"):
        await streamed(model, ask("What now?"))
    assert text_of(await streamed(ScriptedModel(default="Always."), ask("Hi."))) == "Always."


@pytest.mark.parametrize("item", [3, {"name": "refund"}, b"Hello", ["Hello", 3], [["Hello"]]])
def test_what_is_no_answer_is_refused_when_the_script_is_made(item: object) -> None:
    with pytest.raises(ConfigurationError, match=r"is no answer: write text, ToolCall\(…\)"):
        ScriptedModel("Hello.", item)  # type: ignore[arg-type]  # the mistake


async def test_summaries_and_names_take_nothing_from_the_script() -> None:
    model = ScriptedModel("Hello.", summary="In short.", name=lambda request: request.instructions)
    assert (await complete(model, ask("Hi."), purpose="summary")).text == "In short."
    assert (await complete(model, ask("Hi."), purpose="name")).text == "Be brief."
    answer = await complete(model, ask("Hi."), purpose="answer")
    assert (answer.text, answer.reason) == ("Hello.", "stop")
    assert [request.purpose for request in model.requests] == ["summary", "name", "answer"]
    assert finish_of(await streamed(ScriptedModel(""), ask("Hi."))).usage.output_tokens == 0


@tool
async def lookup() -> str:
    """Look something up."""
    raise LookupError("no such table")


async def test_a_tool_that_crashes_fails_the_test_of_its_agent_unless_it_is_expected() -> None:
    def runner(*, is_expected: bool) -> Runner:
        model = ScriptedModel(ToolCall("lookup"), "It failed.", tools_may_crash=is_expected)
        return Runner(Agent("helper", "", [lookup]), InMemorySessionManager("ada"), provider=model)

    with pytest.raises(ToolFailed, match=r"lookup raised LookupError: no such table.*tools_may_crash=True") as failure:
        await runner(is_expected=False).run("Hello?")
    assert isinstance(failure.value.__cause__, LookupError)
    result = await runner(is_expected=True).run("Hello?")
    assert (result.status, result.text, result.tool_errors) == ("complete", "It failed.", 1)
