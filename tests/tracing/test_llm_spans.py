"""What the span of a model call says in OpenInference's terms."""

import json

from omniagent.ai.providers.llm_provider import ModelRequest, Overrides
from omniagent.ai.providers.model_calls import complete
from omniagent.ai.providers.scripted import ScriptedModel, ToolCall
from omniagent.messages import ChatMessage

from .conftest import Recorded


def ask(text: str, **overrides: object) -> ModelRequest:
    return ModelRequest("Be brief.", [ChatMessage.user(text)], overrides=Overrides(**overrides))  # type: ignore[arg-type]


async def test_the_options_of_a_call_are_its_invocation_parameters(recorded: Recorded) -> None:
    options = {"temperature": 0.2, "max_output_tokens": 50, "extra": {"service_tier": "flex", "api_key": "sk-12345678"}}
    await complete(ScriptedModel("Hello."), ask("Hi.", **options), purpose="answer")
    assert json.loads(str(recorded.attributes("llm")["llm.invocation_parameters"])) == {
        "service_tier": "flex",
        "api_key": "***",
        "temperature": 0.2,
        "max_output_tokens": 50,
    }


async def test_a_call_without_options_has_no_invocation_parameters(recorded: Recorded) -> None:
    await complete(ScriptedModel("Hello."), ask("Hi."), purpose="answer")
    assert "llm.invocation_parameters" not in recorded.attributes("llm")


async def test_the_answer_is_an_output_message_when_content_is_on(recorded_with_content: Recorded) -> None:
    await complete(ScriptedModel(["One moment.", ToolCall("add", {"a": 1})]), ask("Hi."), purpose="answer")
    span = recorded_with_content.attributes("llm")
    assert span["llm.output_messages.0.message.role"] == "assistant"
    assert span["llm.output_messages.0.message.content"] == "One moment."
    assert span["llm.output_messages.0.message.tool_calls.0.tool_call.function.name"] == "add"
    assert json.loads(str(span["output.value"]))["text"] == "One moment."


async def test_neither_question_nor_answer_is_recorded_when_content_is_off(recorded: Recorded) -> None:
    await complete(ScriptedModel(["hush", ToolCall("add", {"a": "hush"})]), ask("hush"), purpose="answer")
    assert "hush" not in recorded.everything()
