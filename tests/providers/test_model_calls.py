"""Every call of a model is one LLM span."""

import json
from contextlib import aclosing, suppress

import pytest

from omniagent.ai.providers.fallback import FallbackProvider
from omniagent.ai.providers.llm_provider import ModelFinish, ModelReasoning, ModelReasoningDone, Overrides
from omniagent.ai.providers.model_calls import call_model, complete
from omniagent.ai.providers.scripted import Answer, ScriptedModel, ToolCall
from omniagent.errors import ModelRejected, ModelUnavailable
from omniagent.messages import Usage
from omniagent.tracing import trace_operation
from tests.providers.helpers import ask
from tests.tracing.conftest import Recorded, recorded, recorded_with_content

__all__ = ["recorded", "recorded_with_content"]


async def test_a_call_is_one_span_with_model_purpose_counts_and_reason(recorded: Recorded) -> None:
    usage = Usage(7, 5, 3, 2, cache_write_tokens=1)
    model = ScriptedModel(summary=["In short.", ModelFinish("length", usage)])
    with trace_operation("turn"):
        answer = await complete(model, ask("secret", overrides=Overrides(model="small")), purpose="summary")
    assert (answer.text, answer.usage) == ("In short.", usage)
    assert recorded.parent("llm") == "turn"
    assert recorded.attributes("llm") == {
        "openinference.span.kind": "LLM",
        "llm.system": "scripted",
        "llm.model_name": "small",
        "omniagent.purpose": "summary",
        "llm.finish_reason": "length",
        "llm.token_count.prompt": 7,
        "llm.token_count.completion": 5,
        "llm.token_count.total": 12,
        "llm.token_count.prompt_details.cache_read": 3,
        "llm.token_count.prompt_details.cache_write": 1,
        "llm.token_count.completion_details.reasoning": 2,
    }
    assert "secret" not in recorded.everything()


async def test_content_is_recorded_when_it_is_captured(recorded_with_content: Recorded) -> None:
    model = ScriptedModel([ModelReasoning("Hm."), ModelReasoningDone(), "One moment.", ToolCall("add", {"a": 1})])
    await complete(model, ask("What is one?"), purpose="answer")
    seen = recorded_with_content.attributes("llm")
    assert "What is one?" in str(seen["input.value"])
    assert seen["output.value"] == (
        '{"text": "One moment.", "reasoning": "Hm.", '
        '"tool_calls": [{"id": "call_1", "name": "add", "arguments": "{\\"a\\": 1}"}]}'
    )
    assert seen["llm.output_messages.0.message.content"] == "One moment."
    assert seen["llm.output_messages.0.message.tool_calls.0.tool_call.function.name"] == "add"


@pytest.mark.parametrize(
    ("script", "output"),
    [
        ("Hello there.", "Hello there."),
        (["Hel", ModelRejected("400", api_text="no")], '{"text": "Hel", "error": "no"}'),
    ],
)
async def test_text_is_recorded_as_it_is_and_beside_what_the_api_refused(
    script: Answer, output: str, recorded_with_content: Recorded
) -> None:
    with suppress(ModelRejected):
        await complete(ScriptedModel(script), ask("Hi."), purpose="answer")
    assert recorded_with_content.attributes("llm")["output.value"] == output


async def test_the_options_of_a_call_are_its_invocation_parameters(recorded: Recorded) -> None:
    extra = {"service_tier": "flex", "api_key": "sk-12345678"}
    overrides = Overrides(temperature=0.2, max_output_tokens=50, extra=extra)
    await complete(ScriptedModel("Hello."), ask("Hi.", overrides=overrides), purpose="answer")
    assert json.loads(str(recorded.attributes("llm")["llm.invocation_parameters"])) == {
        "service_tier": "flex",
        "api_key": "***",
        "temperature": 0.2,
        "max_output_tokens": 50,
    }


async def test_a_reader_that_leaves_early_is_a_cancelled_call_with_what_it_read(
    recorded_with_content: Recorded,
) -> None:
    async with aclosing(call_model(ScriptedModel("Hello there."), ask("Hi."), purpose="answer")) as events:
        await anext(events)
    seen = recorded_with_content.attributes("llm")
    assert (seen["omniagent.cancelled"], seen["output.value"]) == (True, "Hello")


async def test_a_reader_that_leaves_at_the_end_cancels_nothing(recorded: Recorded) -> None:
    async with aclosing(call_model(ScriptedModel("Hello."), ask("Hi."), purpose="answer")) as events:
        async for event in events:
            if isinstance(event, ModelFinish):
                break
    assert "omniagent.cancelled" not in recorded.attributes("llm")
    assert recorded["llm"].status.is_ok


async def test_the_text_of_the_api_is_in_the_span_only_with_content(recorded: Recorded) -> None:
    with pytest.raises(ModelRejected):
        await complete(ScriptedModel(ModelRejected("400", api_text="no: secret")), ask("Hi."), purpose="answer")
    assert not recorded["llm"].status.is_ok
    assert "secret" not in recorded.everything()


async def test_a_span_names_the_model_that_answered_in_the_end(recorded: Recorded) -> None:
    chain = FallbackProvider([ScriptedModel(ModelUnavailable()), ScriptedModel("Hello.", model="second")])
    await complete(chain, ask("Hi."), purpose="answer")
    assert recorded.attributes("llm")["llm.model_name"] == "second"
