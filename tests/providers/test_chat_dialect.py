"""What is sent to servers that want Chat Completions differently."""

import re

import pytest

from omniagent.ai.providers import get_llm_provider
from omniagent.ai.providers.llm_provider import ModelRequest, Overrides
from omniagent.errors import ModelRejected
from omniagent.messages import ChatMessage, Part, ReasoningPart, StepPart, TextPart
from tests.providers.canned import Json
from tests.providers.helpers import answer, called, streamed

OPENAI_ID = "call_PTLP8xhu3uwZk4l3nlnrrJha"
MISTRAL_ID = "D681PevKs"
MISTRALS = ("mistral-small-latest", "mistralai/Devstral-Small-2", "open-mixtral-8x22b")
KIMIS = ("kimi-k2-thinking", "moonshotai/Kimi-K2.5")


async def send(model: str, base_url: str, *parts: Part) -> None:
    """Send the next question after an answer of these parts."""
    messages = [ChatMessage.user("Hi."), answer(StepPart(), *parts), ChatMessage.user("And?")]
    provider = get_llm_provider(f"openai-chat/{model}", base_url=base_url)
    with pytest.raises(ModelRejected):
        await streamed(provider, ModelRequest("", messages, overrides=Overrides(max_output_tokens=900)))
    await provider.aclose()


@pytest.mark.parametrize(
    ("model", "base_url", "field"),
    [
        ("mistral-small-latest", "https://api.mistral.ai/v1", "max_tokens"),
        ("gpt-oss:20b", "http://127.0.0.1:11434/v1", "max_tokens"),
        ("openai/gpt-6-luna", "https://openrouter.ai/api/v1", "max_completion_tokens"),
        ("o9-mini", "http://127.0.0.1:4000", "max_completion_tokens"),
        ("our-deployment", "https://acme.openai.azure.com/openai/v1/", "max_completion_tokens"),
    ],
)
async def test_the_limit_of_an_output_has_the_name_that_the_server_knows(
    model: str, base_url: str, field: str, bodies: list[Json]
) -> None:
    await send(model, base_url, TextPart(text="Hello."))
    assert {name: value for name, value in bodies[0].items() if value == 900} == {field: 900}


@pytest.mark.parametrize(
    ("model", "pattern"),
    [
        *((name, rf"(?!{MISTRAL_ID})\w{{9}} {MISTRAL_ID} (?!{MISTRAL_ID})\w{{9}}") for name in MISTRALS),
        *((name, "functions.add:0 functions.add:1 functions.add:2") for name in KIMIS),
        ("qwen3", f"{OPENAI_ID} {MISTRAL_ID} call_2"),
    ],
)
async def test_a_model_is_sent_ids_of_calls_that_it_takes(model: str, pattern: str, bodies: list[Json]) -> None:
    await send(model, "http://127.0.0.1:8000/v1", called(OPENAI_ID), called(MISTRAL_ID), StepPart(), called("call_2"))
    ids = [call["id"] for message in bodies[0]["messages"] for call in message.get("tool_calls", ())]
    assert re.fullmatch(pattern, " ".join(ids), re.ASCII)
    assert len(set(ids)) == 3
    assert [message["tool_call_id"] for message in bodies[0]["messages"] if message["role"] == "tool"] == ids


@pytest.mark.parametrize(
    "base_url", ["https://api.deepseek.com", "https://api.moonshot.ai/v1", "https://api.kimi.com/coding/v1"]
)
async def test_a_server_that_refuses_calls_without_reasoning_is_sent_some_with_another_models_calls(
    base_url: str, bodies: list[Json]
) -> None:
    await send("thinker", base_url, ReasoningPart(text="Hm."), called(OPENAI_ID), StepPart(), TextPart(text="Three."))
    answers = [message for message in bodies[0]["messages"] if message["role"] == "assistant"]
    assert all(message["reasoning_content"] for message in answers)
    await send("thinker", base_url, TextPart(text="Hello."))
    assert "reasoning_content" not in bodies[1]["messages"][1]


@pytest.mark.parametrize("base_url", ["https://api.groq.com/openai/v1", "http://127.0.0.1:8000/deepseek/v1"])
async def test_no_other_server_is_sent_reasoning_that_it_did_not_write(base_url: str, bodies: list[Json]) -> None:
    await send("deepseek-r1-distill", base_url, called(OPENAI_ID))
    assert "reasoning_content" not in bodies[0]["messages"][1]
