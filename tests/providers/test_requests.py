"""What is sent to the APIs: typed as the SDK types it, and never refused for what was stored."""

import json
from collections.abc import AsyncIterable
from dataclasses import replace
from typing import Any

import httpcore2
import pytest
from anthropic.types import message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from pydantic import TypeAdapter

from local.model import OfflineModel
from omniagent.ai.prompts import summary_message
from omniagent.ai.providers import get_llm_provider
from omniagent.ai.providers.llm_provider import ModelReasoningDone, ModelRequest, OutputFormat, Overrides
from omniagent.errors import ModelRejected
from omniagent.messages import (
    ORPHAN_ERROR,
    ChatMessage,
    Part,
    ReasoningPart,
    StepPart,
    TextPart,
)
from tests.providers.canned import Json
from tests.providers.conftest import MakeProvider
from tests.providers.helpers import ADD, ALL_APIS, APIS, CITY, answer, ask, called, finish_of, only, streamed, text_of

SEALED = {"id": "rs_1", "summary": [], "encrypted_content": "sealed"}
TYPES: dict[str, TypeAdapter[Any]] = {
    "responses": TypeAdapter(response_create_params.ResponseCreateParamsStreaming),
    "chat": TypeAdapter(completion_create_params.CompletionCreateParamsStreaming),
    "messages": TypeAdapter(message_create_params.MessageCreateParamsStreaming),
}


async def sent(provider_of: MakeProvider, offline: OfflineModel, api: str, *messages: ChatMessage) -> Json:
    """The body of the request for these messages, after the model has accepted it."""
    provider = provider_of(api, offline.base_url, model="" if api == "messages" else "gpt-6-sol")
    assert finish_of(await streamed(provider, ModelRequest("Be brief.", messages, [ADD]))).reason == "stop"
    body = offline.requests[-1].body
    TYPES[api].validate_python(body)
    return body


async def test_a_turn_with_tools_is_told_to_responses_step_by_step(
    offline: OfflineModel, provider_of: MakeProvider
) -> None:
    turn = answer(
        StepPart(),
        TextPart(text="Adding."),
        called("call_1"),
        called("call_2", output="four"),
        StepPart(),
        TextPart(text="Done."),
    )
    body = await sent(provider_of, offline, "responses", ChatMessage.user("Add."), turn, ChatMessage.user("[echo:x]"))
    assert body["instructions"] == "Be brief."
    assert body["store"] is False
    assert body["input"] == [
        {"type": "message", "role": "user", "content": "Add."},
        {"type": "message", "role": "assistant", "content": "Adding."},
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "call_2", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "3"},
        {"type": "function_call_output", "call_id": "call_2", "output": "four"},
        {"type": "message", "role": "assistant", "content": "Done."},
        {"type": "message", "role": "user", "content": "[echo:x]"},
    ]


async def test_a_turn_with_tools_is_told_to_chat_completions_step_by_step(
    offline: OfflineModel, provider_of: MakeProvider
) -> None:
    turn = answer(StepPart(), called("call_1"), called("call_2"), StepPart(), TextPart(text="Done."))
    body = await sent(provider_of, offline, "chat", ChatMessage.user("Add."), turn, ChatMessage.user("[echo:x]"))
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
        for call_id in ("call_1", "call_2")
    ]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        {"role": "tool", "tool_call_id": "call_2", "content": "3"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "[echo:x]"},
    ]


BROKEN_TURNS: dict[str, list[Part]] = {
    "a call without an output": [StepPart(), called("call_1", done=False)],
    "one of two calls without an output": [StepPart(), called("call_1"), called("call_2", done=False)],
    "a call without a step": [called("call_1", done=False), TextPart(text="Hm.")],
    "text after a call in the same step": [StepPart(), called("call_1"), TextPart(text="Hm.")],
    "arguments that are not JSON": [StepPart(), called("call_1", input='{"broken": ', error="Not JSON.")],
    "arguments that are no object": [StepPart(), called("call_1", input=[1])],
    "no arguments": [StepPart(), called("call_1", input=None)],
    "no output": [StepPart(), called("call_1", output=None)],
    "a tool that cannot exist": [StepPart(), called("call_1", name="functions.add 2!"), called("call_2", name="")],
    "half a surrogate pair in an output": [StepPart(), called("call_1", output={"text": "\ud83d"})],
    "an output that is not JSON": [StepPart(), called("call_1", output={"when": complex(1, 2)})],
    "reasoning and nothing after it": [StepPart(), ReasoningPart(text="Hm.", provider_data=SEALED)],
    "empty text": [StepPart(), TextPart(text="")],
    "empty steps": [StepPart(), StepPart(), StepPart()],
    "nothing": [],
}


@pytest.mark.parametrize("api", ALL_APIS)
@pytest.mark.parametrize("name", BROKEN_TURNS)
async def test_no_turn_makes_the_api_refuse_its_next_step_or_the_next_turn(
    name: str, api: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    question, said = ChatMessage.user("[echo:x]"), answer(*BROKEN_TURNS[name])
    await sent(provider_of, offline, api, question, said)
    await sent(provider_of, offline, api, ChatMessage.user("Good morning."), said, question)


@pytest.mark.parametrize("api", APIS)
async def test_the_model_reads_why_a_tool_failed_and_that_a_call_was_interrupted(
    api: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    failed = called("call_1", output=None, error="No such city: Atlantis.", public_error="The tool failed.")
    turn = answer(StepPart(), failed, called("call_2", done=False))
    body = await sent(provider_of, offline, api, ChatMessage.user("Add."), turn, ChatMessage.user("[echo:x]"))
    items = body["input"] if api == "responses" else body["messages"]
    told = [
        item.get("output") or item.get("content") for item in items if "output" in item or item.get("role") == "tool"
    ]
    assert told == ["No such city: Atlantis.", ORPHAN_ERROR]


async def test_chat_completions_are_never_sent_two_user_messages_in_a_row(
    offline: OfflineModel, provider_of: MakeProvider
) -> None:
    summary = summary_message("My name is Ada.")
    messages = [summary, ChatMessage.user("Hi."), answer(StepPart()), ChatMessage.user("[echo:x]")]
    body = await sent(provider_of, offline, "chat", *messages)
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"{summary.text}\n\nHi.\n\n[echo:x]"},
    ]


async def test_chat_completions_are_never_sent_a_user_message_after_a_tools_output(
    offline: OfflineModel, provider_of: MakeProvider
) -> None:
    stopped = answer(StepPart(), called("call_1"), called("call_2"))
    body = await sent(provider_of, offline, "chat", ChatMessage.user("Add."), stopped, ChatMessage.user("[echo:x]"))
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert [message["role"] for message in body["messages"]] == roles
    assert body["messages"][-2]["content"]


async def test_reasoning_is_handed_back_within_its_turn_and_not_after(
    offline: OfflineModel, provider_of: MakeProvider
) -> None:
    step = answer(StepPart(), ReasoningPart(text="Hm.", provider_data=SEALED), called("call_1"))
    during = await sent(provider_of, offline, "responses", ChatMessage.user("[echo:x]"), step)
    assert [item["type"] for item in during["input"]] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert during["input"][1] == {"type": "reasoning", **SEALED}
    after = await sent(provider_of, offline, "responses", ChatMessage.user("Hi."), step, ChatMessage.user("[echo:x]"))
    assert "reasoning" not in [item["type"] for item in after["input"]]


def marked(text: str = "", model: str = "gpt-6-sol", **data: Any) -> ReasoningPart:
    return ReasoningPart(text=text, provider_data={"model": model, **data})


async def test_a_model_is_sent_what_it_requires_back_of_its_reasoning(
    offline: OfflineModel, provider_of: MakeProvider
) -> None:
    details = [{"type": "reasoning.encrypted", "data": "sealed"}]
    turn = answer(
        StepPart(),
        marked("Hm.", field="reasoning_content"),
        called("call_1"),
        marked(call_id="call_1", extra_content={"google": {"thought_signature": "sealed"}}),
        StepPart(),
        marked(field="reasoning_content"),
        called("call_2"),
        marked(reasoning_details=details),
        StepPart(),
        marked("Ah.", field="reasoning_content"),
        TextPart(text="Done."),
    )
    body = await sent(provider_of, offline, "chat", ChatMessage.user("Add."), turn, ChatMessage.user("[echo:x]"))
    first, _, second, _, last, _ = body["messages"][2:]
    assert [message.get("reasoning_content") for message in (first, second, last)] == ["Hm.", "", "Ah."]
    assert first["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "sealed"}}
    assert second["reasoning_details"] == details


OTHERS: dict[str, list[Part]] = {
    "another model's": [marked("Hm.", model="deepseek", field="reasoning_content"), called("call_1")],
    "that of an answer without tools": [marked("Hm.", field="reasoning_content"), TextPart(text="Hi.")],
    "that of another API": [ReasoningPart(text="Hm.", provider_data=SEALED), called("call_1")],
    "that of a server that does not want it": [ReasoningPart(text="Hm."), called("call_1")],
    "another model's signature": [called("call_1"), marked(model="gemini", call_id="call_1", extra_content={"a": 1})],
}


@pytest.mark.parametrize("name", OTHERS)
async def test_no_other_reasoning_is_sent_to_chat_completions(
    name: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    history = [ChatMessage.user("Add."), answer(StepPart(), *OTHERS[name])]
    body = await sent(provider_of, offline, "chat", *history, ChatMessage.user("[echo:x]"))
    for message in body["messages"]:
        assert set(message) <= {"role", "content", "tool_calls", "tool_call_id"}
        assert all(set(call) == {"id", "type", "function"} for call in message.get("tool_calls", ()))


@pytest.mark.parametrize(
    ("model", "extra", "is_asked"),
    [
        ("llama3", {}, False),
        ("gpt-4-of-our-team", {}, False),
        ("gpt-6-chat-latest", {}, False),
        ("gpt-6.1-chat-latest", {}, False),
        ("gpt-6-luna", {}, True),
        ("o9-mini", {}, True),
        ("ft:gpt-6-sol:acme::1", {}, True),
        ("llama3", {"reasoning": {"effort": "low"}}, True),
    ],
)
async def test_only_a_model_that_reasons_is_asked_for_its_sealed_reasoning(
    model: str, extra: Json, is_asked: bool, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    provider = provider_of("responses", offline.base_url, model=model, extra=extra)
    done = only(await streamed(provider, ask("[reason] Hello.")), ModelReasoningDone)
    assert ("include" in offline.requests[-1].body) == is_asked
    assert [bool(event.provider_data) for event in done] == [is_asked]


@pytest.mark.parametrize("api", APIS)
async def test_tools_are_strict_and_nothing_is_sent_that_was_not_asked_for(
    api: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    provider = provider_of(api, offline.base_url, model="llama3")
    await streamed(provider, ask("[echo:x]"))
    body = offline.requests[-1].body
    (tool,) = body["tools"]
    assert (tool if api == "responses" else tool["function"])["strict"] is True
    always = {"responses": {"instructions", "input", "store"}, "chat": {"messages", "stream_options"}}
    assert set(body) == {"model", "tools", "stream"} | always[api]
    await streamed(provider, ask("[echo:x]", tools=()))
    assert "tools" not in offline.requests[-1].body


@pytest.mark.parametrize(("api", "limit"), [("responses", "max_output_tokens"), ("chat", "max_completion_tokens")])
async def test_a_call_overrides_what_the_provider_was_told(
    api: str, limit: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    provider = provider_of(
        api, offline.base_url, temperature=0.1, max_output_tokens=900, parallel_tool_calls=False, extra={"user": "u"}
    )
    await streamed(provider, ask("[echo:x]"))
    body = offline.requests[-1].body
    assert (body["temperature"], body[limit], body["user"]) == (0.1, 900, "u")
    assert body["parallel_tool_calls"] is False

    await streamed(provider, ask("[echo:x]", overrides=Overrides(temperature=0.0, extra={"user": "v"})))
    body = offline.requests[-1].body
    assert (body["temperature"], body[limit], body["user"]) == (0.0, 900, "v")


@pytest.mark.parametrize("api", APIS)
async def test_a_call_of_another_model_takes_nothing_that_was_meant_for_the_first(
    api: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    extra = {"reasoning": {"effort": "high"}} if api == "responses" else {"reasoning_effort": "high"}
    provider = provider_of(api, offline.base_url, model="gpt-6-sol", extra=extra)
    await streamed(provider, ask("Hi.", overrides=Overrides(model="llama3", temperature=0.3)))
    body = offline.requests[-1].body
    assert (body["model"], body["temperature"]) == ("llama3", 0.3)
    assert not {*extra, "include"} & set(body)


EFFORTS: dict[str, Any] = {"responses": {"reasoning": {"effort": "none"}}, "chat": {"reasoning_effort": "none"}}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("model", ["gpt-6-luna", "gpt-6-luna-2026-09-01", "openai/gpt-6-luna", "us.openai.gpt-6-luna"])
async def test_gpt_6_luna_is_sent_the_effort_none_by_default(
    api: str, model: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    await streamed(provider_of(api, offline.base_url, model=f"openai/{model}"), ask("[echo:x]"))
    body = offline.requests[-1].body
    assert body.items() >= {"model": model, **EFFORTS[api]}.items()
    TYPES[api].validate_python(body)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("model", ["gpt-6-sol", "gpt-6.1-luna", "llama3", "mistral-large", "my-gpt-6-luna"])
async def test_no_other_model_is_sent_an_effort_that_nobody_chose(
    api: str, model: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    await streamed(provider_of(api, offline.base_url, model=model), ask("[echo:x]", tools=()))
    assert not {"reasoning", "reasoning_effort"} & set(offline.requests[-1].body)


@pytest.mark.parametrize(
    ("api", "chosen"),
    [
        ("responses", {"reasoning": {"effort": "high"}}),
        ("responses", {"reasoning": {"summary": "auto"}}),
        ("chat", {"reasoning_effort": "high"}),
        ("chat", {"reasoning": {"effort": "high"}}),
    ],
)
async def test_a_chosen_effort_replaces_the_default(
    api: str, chosen: Json, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    by_call, by_provider = Overrides(extra=chosen), Overrides()
    for extra, overrides in (({}, by_call), (chosen, by_provider)):
        request = ask("[echo:x]", tools=(), overrides=overrides)
        await streamed(provider_of(api, offline.base_url, extra=extra), request)
        body = offline.requests[-1].body
        assert {name: body[name] for name in ("reasoning", "reasoning_effort") if name in body} == chosen


@pytest.mark.parametrize("api", APIS)
async def test_an_answer_is_asked_for_as_json_of_a_schema(
    api: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    request = replace(ask("The weather in Lisbon?", tools=()), output=OutputFormat("weather", CITY))
    events = await streamed(provider_of(api, offline.base_url), request)
    assert json.loads(text_of(events)) == {"city": "Lisbon"}
    body = offline.requests[-1].body
    TYPES[api].validate_python(body)
    schema = {"name": "weather", "schema": CITY, "strict": True}
    if api == "responses":
        assert body["text"] == {"format": {"type": "json_schema", **schema}}
    else:
        assert body["response_format"] == {"type": "json_schema", "json_schema": schema}


IDENTIFIED = replace(ask("[echo:x]"), cache_key="session-1", user_id="hash-1")
IDENTIFIERS = {"prompt_cache_key": "session-1", "safety_identifier": "hash-1"}


@pytest.mark.parametrize("api", APIS)
async def test_a_compatible_server_is_not_sent_the_session_and_the_user_unless_it_takes_them(
    api: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    await streamed(provider_of(api, offline.base_url), IDENTIFIED)
    assert not IDENTIFIERS.keys() & offline.requests[-1].body.keys()
    await streamed(provider_of(api, offline.base_url, identifiers=True), IDENTIFIED)
    body = offline.requests[-1].body
    TYPES[api].validate_python(body)
    assert {name: body[name] for name in IDENTIFIERS} == IDENTIFIERS


@pytest.mark.parametrize("api", APIS)
async def test_an_identifier_that_is_too_long_for_the_api_is_hashed(
    api: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    provider = provider_of(api, offline.base_url, identifiers=True)
    keys = []
    for session in ("a", "a", "b"):
        await streamed(provider, replace(IDENTIFIED, cache_key=session * 100))
        keys.append(offline.requests[-1].body["prompt_cache_key"])
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("api", APIS)
async def test_openai_itself_is_sent_the_session_and_the_user(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[Json] = []

    async def answer_here(_: httpcore2.AsyncConnectionPool, request: httpcore2.Request) -> httpcore2.Response:
        assert request.url.host == b"api.openai.com"
        assert isinstance(request.stream, AsyncIterable)
        bodies.append(json.loads(b"".join([piece async for piece in request.stream])))
        refusal = {"error": {"message": "that is all", "code": "invalid_prompt"}}
        return httpcore2.Response(400, content=json.dumps(refusal).encode())

    monkeypatch.setattr(httpcore2.AsyncConnectionPool, "handle_async_request", answer_here)
    provider = get_llm_provider("gpt-6-luna", api=api, api_key="none")
    for request in (IDENTIFIED, ask("[echo:x]")):
        with pytest.raises(ModelRejected):
            await streamed(provider, request)
    await provider.aclose()
    assert {name: bodies[0][name] for name in IDENTIFIERS} == IDENTIFIERS
    assert not IDENTIFIERS.keys() & bodies[1].keys()
