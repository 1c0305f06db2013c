"""Claude: what is sent to Anthropic's Messages API, and what is read of its answers."""

import json
from dataclasses import replace
from typing import Any

import pytest

from omniagent.ai.providers import get_llm_provider
from omniagent.ai.providers.anthropic.anthropic_messages import MAX_PAUSES, MessageReader
from omniagent.ai.providers.llm_provider import (
    ModelReasoning,
    ModelReasoningDone,
    ModelRequest,
    ModelSource,
    ModelText,
    ModelToolCall,
    OutputFormat,
    ToolSpec,
)
from omniagent.errors import ModelRejected, ModelStreamBroken, ModelUnavailable
from omniagent.messages import ChatMessage, FinishReason, ReasoningPart, StepPart, TextPart, Usage
from tests.providers.canned import (
    Json,
    claude_text,
    frames,
    message_events,
    reply,
    saying,
    serve,
    stream,
    tool_use,
)
from tests.providers.conftest import MakeProvider, Sent
from tests.providers.helpers import ADD, CITY, answer, ask, called, finish_of, merged, only, read, streamed, text_of

CACHED = {"type": "ephemeral"}
HELLO = stream(frames(message_events(claude_text("Hello", "."))))


def text(content: str) -> Json:
    return {"type": "text", "text": content}


async def test_a_turn_with_tools_is_sent_step_by_step(sent: Sent) -> None:
    turn = answer(
        StepPart(),
        TextPart(text="Adding."),
        called("call_1"),
        called("call.2", output=None, error="Too big."),
        StepPart(),
        TextPart(text="Done."),
    )
    body = await sent(
        "messages", ModelRequest("Be brief.", [ChatMessage.user("Add."), turn, ChatMessage.user("Thanks.")], [ADD])
    )
    assert body["messages"] == [
        {"role": "user", "content": [text("Add.")]},
        {
            "role": "assistant",
            "content": [
                text("Adding."),
                {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "call_2", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "3"},
                {"type": "tool_result", "tool_use_id": "call_2", "content": "Too big.", "is_error": True},
            ],
        },
        {"role": "assistant", "content": [text("Done.")]},
        {"role": "user", "content": [text("Thanks.")]},
    ]


async def test_messages_of_one_role_are_joined_after_the_tool_results(sent: Sent) -> None:
    messages = [ChatMessage.user("Add."), answer(StepPart(), called("call_1")), ChatMessage.user("Stop.")]
    body = await sent("messages", ModelRequest("", messages, [ADD]))
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in body["messages"][-1]["content"]] == ["tool_result", "text"]


async def test_tools_and_instructions_end_with_one_cache_breakpoint(sent: Sent) -> None:
    body = await sent("messages", ask("Hi."))
    assert body["cache_control"] == CACHED
    assert body["system"] == [{**text("Be brief."), "cache_control": CACHED}]
    assert "cache_control" not in body["tools"][0]
    body = await sent("messages", replace(ask("Hi."), instructions=""))
    assert "system" not in body
    assert body["tools"][0]["cache_control"] == CACHED


async def test_the_user_is_identified_without_refused_characters(sent: Sent) -> None:
    for user_id, is_sent in (("0a1b", "0a1b"), ('{"a": 1}', None)):
        body = await sent("messages", replace(ask("Hi."), user_id=user_id))
        assert (body["metadata"]["user_id"] == user_id) == bool(is_sent)
    assert "metadata" not in await sent("messages", ask("Hi."))


async def test_parallel_tool_calls_can_be_turned_off(sent: Sent) -> None:
    body = await sent("messages", ask("Hi."), parallel_tool_calls=False)
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


SIGNED = {"signature": "signed-1"}
REDACTED = {"block": {"type": "redacted_thinking", "data": "sealed"}}


async def test_thinking_is_sent_back_within_its_turn_and_not_after(sent: Sent) -> None:
    step = answer(
        StepPart(),
        ReasoningPart(text="Hm.", provider_data=SIGNED),
        ReasoningPart(text="", provider_data=REDACTED),
        ReasoningPart(text="Another model's.", provider_data={"encrypted_content": "sealed"}),
        called("call_1"),
    )
    during = await sent("messages", ModelRequest("", [ChatMessage.user("Add."), step], [ADD]))
    thinking, redacted, call = during["messages"][1]["content"]
    assert thinking == {"type": "thinking", "thinking": "Hm.", **SIGNED}
    assert redacted == REDACTED["block"]
    assert call["type"] == "tool_use"
    after = await sent("messages", ModelRequest("", [ChatMessage.user("Add."), step, ChatMessage.user("Hi.")], [ADD]))
    assert [block["type"] for block in after["messages"][1]["content"]] == ["tool_use"]


async def test_a_schema_is_native_or_the_schema_of_a_tool(sent: Sent) -> None:
    for strict in (True, False):
        request = replace(ask("Where?", tools=()), output=OutputFormat("city", CITY, strict=strict))
        body = await sent("messages", request, extra={"output_config": {"effort": "low"}})
        native = {"format": {"type": "json_schema", "schema": CITY}} if strict else {}
        assert body["output_config"] == {**native, "effort": "low"}
        assert [tool["input_schema"] for tool in body.get("tools", [])] == ([] if strict else [CITY])
        assert body.get("tool_choice") == (None if strict else {"type": "auto"}), "this model refuses a forced tool"


ADAPTIVE = {"type": "adaptive", "display": "summarized"}


@pytest.mark.parametrize(
    ("model", "thinking", "kind"),
    [
        ("claude-sonnet-5-5", {}, "auto"),
        ("claude-opus-5", {}, "tool"),
        ("claude-opus-5", {"thinking": ADAPTIVE}, "auto"),
    ],
)
async def test_a_forced_tool_becomes_a_free_choice_where_it_is_refused(
    model: str, thinking: Json, kind: str, sent: Sent
) -> None:
    extra = {"tool_choice": {"type": "tool", "name": "add"}, **thinking}
    choice = (await sent("messages", ask("Hi."), model, extra=extra))["tool_choice"]
    assert choice["type"] == kind
    assert ("name" in choice) == (kind == "tool")
    typed = replace(ask("Where?", tools=()), output=OutputFormat("city", CITY, strict=False))
    choice = (await sent("messages", typed, model, extra=thinking))["tool_choice"]
    assert choice == ({"type": "tool", "name": "city"} if kind == "tool" else {"type": "auto"})


async def test_a_tool_choice_that_is_none_is_for_the_api_to_refuse(provider_of: MakeProvider) -> None:
    refusal = reply(400, {"error": {"message": "tool_choice: Input should be an object"}})
    async with serve(refusal, stream(saying("messages", "Hi."))) as server:
        provider = provider_of("messages", server.base_url, extra={"tool_choice": "auto"})
        assert text_of(await streamed(provider, ask("Hi."))) == "Hi."
    assert [body.get("tool_choice") for body in server.bodies] == ["auto", None]


async def test_many_tools_are_not_strict(sent: Sent) -> None:
    tools = [ToolSpec(f"add{number}", "Add.", ADD.parameters) for number in range(21)]
    for count, is_strict in ((20, True), (21, False)):
        body = await sent("messages", ask("Hi.", tools=tools[:count]))
        assert all(("strict" in tool) == is_strict for tool in body["tools"])


def thinking(*texts: str, signature: str = "") -> Json:
    deltas: list[Json] = [{"type": "thinking_delta", "thinking": each} for each in texts]
    signed: list[Json] = [{"type": "signature_delta", "signature": signature}] if signature else []
    return {"type": "thinking", "thinking": "", "signature": "", "deltas": [*deltas, *signed]}


def events_of(*blocks: Json, **end: Any) -> list[Any]:
    return merged(read(MessageReader(), frames(message_events(*blocks, **end))))


def test_thinking_keeps_its_signature() -> None:
    shown, hidden = thinking("Let me", " see.", signature="s1"), thinking(signature="s2")
    assert events_of(shown, hidden, claude_text("Hi."))[:-1] == [
        ModelReasoning("Let me see."),
        ModelReasoningDone({"signature": "s1"}),
        ModelReasoningDone({"signature": "s2"}),
        ModelText("Hi."),
    ]


def test_blocks_that_nobody_is_shown_are_kept_to_be_sent_back() -> None:
    redacted = {"type": "redacted_thinking", "data": "sealed"}
    search = tool_use("srv_1", "add", '{"query":', ' "x"}', kind="server_tool_use")
    result = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    done = only(events_of(redacted, search, result, claude_text("Hi.")), ModelReasoningDone)
    blocks = [event.provider_data["block"] for event in done]
    called = {"type": "server_tool_use", "id": "srv_1", "name": "add", "input": {"query": "x"}}
    assert blocks == [redacted, called, result]


def test_parallel_calls_without_arguments_are_read() -> None:
    ids = ("toolu_0123456789abcdef", "toolu_fedcba9876543210")
    events = events_of(tool_use(ids[0], "add", '{"a"', ": 1}"), tool_use(ids[1], "add"), stop="tool_use")
    assert [(call.call_id, call.arguments) for call in only(events, ModelToolCall)] == [
        (ids[0], '{"a": 1}'),
        (ids[1], "{}"),
    ]
    assert finish_of(events).reason == "tool-calls"


DOCUMENT = {"cited_text": "x", "document_index": 1, "document_title": None, "file_id": None}
RESULT = {"cited_text": "x", "search_result_index": 0, "start_block_index": 0, "end_block_index": 1}


@pytest.mark.parametrize(
    ("citation", "source"),
    [
        ({"type": "char_location", **DOCUMENT, "document_title": "Notes"}, ModelSource(None, "Notes")),
        ({"type": "page_location", **DOCUMENT}, ModelSource(None, "Document 2", "application/pdf")),
        ({"type": "content_block_location", **DOCUMENT}, ModelSource(None, "Document 2")),
        (
            {"type": "web_search_result_location", "url": "https://a.example", "title": None, "cited_text": "x"},
            ModelSource("https://a.example"),
        ),
        (
            {"type": "search_result_location", **RESULT, "source": "https://a.example", "title": "A"},
            ModelSource("https://a.example", "A"),
        ),
        ({"type": "search_result_location", **RESULT, "source": "kb/7", "title": None}, ModelSource(None, "kb/7")),
        (
            {"type": "web_search_result_location", "url": "javascript:alert(1)", "title": "A", "cited_text": "x"},
            ModelSource(None, "A"),
        ),
    ],
)
def test_a_citation_is_a_source_after_the_text(citation: Json, source: ModelSource) -> None:
    cited = claude_text("One")
    cited["deltas"].append({"type": "citations_delta", "citation": citation})
    assert events_of(cited, claude_text(" two."))[:-1] == [ModelText("One two."), source]
    whole = {"type": "message", "content": [{**text("One two."), "citations": [citation]}], "stop_reason": "end_turn"}
    assert read(MessageReader(), [json.dumps(whole).encode()])[:-1] == [ModelText("One two."), source]


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content-filter"),
        ("compaction", "other"),
    ],
)
def test_every_stop_reason_has_a_finish_reason(stop: str, reason: FinishReason) -> None:
    assert finish_of(events_of(claude_text("Hi."), stop=stop)).reason == reason


def test_a_refusal_without_text_gives_its_explanation() -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "I must not."}
    assert text_of(events_of(stop="refusal", stop_details=details)) == "I must not."
    assert text_of(events_of(claude_text("No."), stop="refusal", stop_details=details)) == "No."


def test_cached_tokens_count_as_input() -> None:
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 3},
    }
    expected = Usage(130, 7, cached_input_tokens=100, reasoning_tokens=3, cache_write_tokens=20)
    assert finish_of(events_of(claude_text("Hi."), usage=usage)).usage == expected


@pytest.mark.parametrize(
    ("kind", "error"),
    [("overloaded_error", ModelUnavailable), ("api_error", ModelUnavailable), ("invalid_request_error", ModelRejected)],
)
def test_an_error_in_mid_stream_comes_after_what_was_said(kind: str, error: type[Exception]) -> None:
    events = message_events(claude_text("Hel"), stop=None)
    failure = {"type": "error", "error": {"type": kind, "message": "no"}}
    reader = MessageReader()
    told = reader.read([*events, failure])
    assert next(told) == ModelText("Hel")
    with pytest.raises(error):
        next(told)


def test_a_server_that_does_not_stream_is_read() -> None:
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s1"},
        text("Hi."),
        {"type": "tool_use", "id": "toolu_0123456789abcdef", "name": "add", "input": {"a": 1}},
    ]
    message = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": {"input_tokens": 2}}
    events = read(MessageReader(), [json.dumps(message).encode()])
    assert text_of(events) == "Hi."
    assert only(events, ModelReasoningDone) == [ModelReasoningDone({"signature": "s1"})]
    assert [call.arguments for call in only(events, ModelToolCall)] == ['{"a": 1}']
    assert finish_of(events).usage.input_tokens == 2


async def test_a_paused_answer_is_continued_as_one(provider_of: MakeProvider) -> None:
    search = tool_use("srv_1", "add", '{"query": "x"}', kind="server_tool_use")
    paused = stream(
        frames(message_events(thinking("Hm.", signature="s1"), claude_text("One"), search, stop="pause_turn"))
    )
    again = stream(frames(message_events(claude_text(" two"), stop="pause_turn")))
    async with serve(paused, again, stream(frames(message_events(claude_text(" three."))))) as server:
        events = await streamed(provider_of("messages", server.base_url), ask("Count."))
    assert text_of(events) == "One two three."
    assert finish_of(events).usage == Usage(3, 3)
    first, second, third = server.bodies
    (said,) = second["messages"][len(first["messages"]) :]
    called = {"type": "server_tool_use", "id": "srv_1", "name": "add", "input": {"query": "x"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s1"}
    assert said == {"role": "assistant", "content": [thought, text("One"), called]}
    assert third["messages"][-1]["content"] == [*said["content"], text(" two")]


async def test_an_answer_that_never_stops_pausing_fails(provider_of: MakeProvider) -> None:
    async with serve(stream(frames(message_events(claude_text("x"), stop="pause_turn")))) as server:
        with pytest.raises(ModelStreamBroken, match="paused"):
            await streamed(provider_of("messages", server.base_url), ask("Count."))
    assert len(server.bodies) == MAX_PAUSES + 1


async def test_the_key_of_the_environment_goes_to_its_vendor_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(HELLO) as server:
        for vendor in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{vendor}_API_KEY", f"key-of-{vendor}")
            monkeypatch.setenv(f"{vendor}_BASE_URL", server.base_url)
        provider = get_llm_provider("anthropic/claude-sonnet-5-5")
        assert text_of(await streamed(provider, ask("Hi."))) == "Hello."
        await provider.aclose()
    assert server.keys == ["key-of-ANTHROPIC"]
