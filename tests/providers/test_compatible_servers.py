"""The habits of servers that speak OpenAI's APIs their own way."""

import json

import pytest

from omniagent.ai.providers.llm_provider import (
    ModelEvent,
    ModelFinish,
    ModelReasoning,
    ModelReasoningDone,
    ModelSource,
    ModelText,
    ModelToolCall,
)
from omniagent.ai.providers.openai.openai_chat import ChatReader, ThinkingReader
from omniagent.ai.providers.openai.openai_responses import ResponseReader, ThinkTagsMode
from omniagent.ai.providers.stream_reader import EventDecoder
from omniagent.errors import ModelAuthError, ModelError, ModelRejected, ModelStreamBroken, ModelUnavailable
from omniagent.messages import FinishReason, Usage
from tests.providers.canned import Json, chat_chunks, frames, reply, saying, serve, stream, text_deltas
from tests.providers.chat_streams import ID, OTHER_ID, call_events, chat, piece
from tests.providers.conftest import MakeProvider
from tests.providers.helpers import ask, comparable, finish_of, merged, only, read, streamed, text_of


def response(*events: Json) -> list[ModelEvent]:
    return merged(read(ResponseReader(), frames(events)))


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_under_either_name(field: str) -> None:
    told = chat({"role": "assistant", "content": ""}, {field: "Let me"}, {field: " see."}, {"content": "42"})
    assert comparable(told)[:-1] == [ModelReasoning("Let me see."), ModelReasoningDone(), ModelText("42")]


def test_content_may_be_a_list_of_parts() -> None:
    told = chat(
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Let me"}]}]},
        {"content": [{"type": "thinking", "thinking": " see."}]},
        {"content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}, "!"]},
        {"content": [{"type": "reference", "reference_ids": [1]}]},
        {"content": [{"type": "text", "text": None}]},
        {"content": {"type": "text", "text": "!"}},
    )
    assert told[:-1] == [ModelReasoning("Let me see."), ModelReasoningDone(), ModelText("42!!")]


def test_an_answer_is_read_from_a_server_that_does_not_stream() -> None:
    function = {"name": "add", "arguments": '{"a": 1}'}
    message = {"role": "assistant", "content": "Adding.", "tool_calls": [{"id": ID, "function": function}]}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 5}}
    told = read(ChatReader(), [json.dumps(body, indent=2).encode()])
    assert told == [ModelText("Adding."), *call_events(ID, '{"a": 1}'), ModelFinish("tool-calls", Usage(5))]


def test_a_response_is_read_from_a_server_that_does_not_stream() -> None:
    said = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
    whole: Json = {"object": "response", "status": "completed", "error": None, "output": [said], "usage": None}
    assert read(ResponseReader(), [json.dumps(whole).encode()]) == [ModelText("hi"), ModelFinish("stop", Usage())]
    failed = {**whole, "status": "failed", "output": [], "error": {"code": "server_error", "message": "x"}}
    with pytest.raises(ModelUnavailable):
        read(ResponseReader(), [json.dumps(failed).encode()])


def test_the_whole_message_in_the_last_chunk_is_not_read_again() -> None:
    chunks = chat_chunks({"content": "hi"})
    chunks[-1]["choices"][0]["message"] = {"role": "assistant", "content": "hi"}
    assert text_of(read(ChatReader(), frames(chunks, done=True))) == "hi"


@pytest.mark.parametrize("content", [5, [5], [{"type": "text", "text": 5}], [{"thinking": [{}]}]])
def test_content_of_another_shape_breaks_the_stream(content: object) -> None:
    with pytest.raises(ModelStreamBroken):
        chat({"content": content})


def test_arguments_may_be_an_object() -> None:
    for arguments, text in (({"a": 1}, '{"a": 1}'), ({}, "{}")):
        whole: Json = {"tool_calls": [{"index": 0, "id": ID, "function": {"name": "add", "arguments": arguments}}]}
        assert only(chat(whole, finish="tool_calls"), ModelToolCall) == [ModelToolCall(ID, "add", text)]
    item = {"type": "function_call", "call_id": ID, "name": "add", "arguments": {"a": 1}}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    assert response(done, text_deltas()[-1])[:-1] == call_events(ID, '{"a": 1}')


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("model_length", "length"),
        ("content_filter", "content-filter"),
        ("eos", "stop"),
        ("unheard-of", "other"),
    ],
)
def test_a_finish_reason_becomes_ours(finish: str, reason: FinishReason) -> None:
    assert finish_of(chat({"content": "hi"}, finish=finish)).reason == reason


@pytest.mark.parametrize("finish", [None, ""])
def test_done_after_text_or_complete_calls_is_a_finish_reason(finish: str | None) -> None:
    assert chat({"content": "hi"}, finish=finish) == [ModelText("hi"), ModelFinish("stop", Usage())]
    called = chat(piece('{"a": 1}', index=0, id=ID, name="add"), finish=finish)
    assert called == [*call_events(ID, '{"a": 1}'), ModelFinish("tool-calls", Usage())]


@pytest.mark.parametrize(
    ("deltas", "done"),
    [
        ([{"content": "hi"}], False),
        ([{"reasoning_content": "hm"}], True),
        ([{"content": "hi"}, piece('{"a"', index=0, id=ID, name="add")], True),
    ],
)
def test_a_stream_that_was_cut_without_a_finish_reason_is_broken(deltas: list[Json], done: bool) -> None:
    with pytest.raises(ModelStreamBroken):
        read(ChatReader(), frames(chat_chunks(*deltas, finish=None), done=done))


THOUGHT = [ModelReasoning("Hm, 1 < 2."), ModelReasoningDone(), ModelText("Yes. <think>No</think>")]


@pytest.mark.parametrize(
    ("mode", "text", "events"),
    [
        ("both", "\n<think>\nHm, 1 < 2.</think>\n\nYes. <think>No</think>", THOUGHT),
        ("closing", "Hm, 1 < 2.</think>\n\nYes. <think>No</think>", THOUGHT),
        ("both", " Yes.</think>", [ModelText(" Yes.</think>")]),
        ("both", "<thin", [ModelText("<thin")]),
        ("both", "<think>Hm </thi", [ModelReasoning("Hm </thi"), ModelReasoningDone()]),
        (None, "<think>Hm</think>Yes.", [ModelText("<think>Hm</think>Yes.")]),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("done", [True, False])
def test_think_tags_at_the_beginning_are_reasoning(
    mode: ThinkTagsMode | None, text: str, events: list[ModelEvent], size: int, *, done: bool
) -> None:
    deltas: list[Json] = [{"content": text[at : at + size]} for at in range(0, len(text), size)]
    reader = ThinkingReader(mode) if mode else ChatReader()
    told = merged(read(reader, frames(chat_chunks(*deltas), done=done)))
    assert told == [*events, ModelFinish("stop", Usage())]


def test_a_call_follows_the_reasoning_of_an_open_think_tag() -> None:
    deltas: list[Json] = [{"content": "<think>Add <"}, piece('{"a": 1}', index=0, id=ID, name="add")]
    told = merged(read(ThinkingReader("both"), frames(chat_chunks(*deltas, finish="tool_calls"), done=True)))
    assert told[:2] == [ModelReasoning("Add <"), ModelReasoningDone()]
    assert told[2:-1] == call_events(ID, '{"a": 1}')


def test_the_usage_may_come_at_the_end() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}}
    usage = {"prompt_tokens": 5, "completion_tokens": 4, **details}
    told = read(ChatReader(), frames([*chat_chunks({"content": "hi"}), {"choices": [], "usage": usage}], done=True))
    assert told == [ModelText("hi"), ModelFinish("stop", Usage(5, 4, 3, 2))]


def test_nothing_is_lost_if_each_chunk_has_usage_and_a_finish_reason() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 4}
    deltas: list[Json] = [{"content": "One "}, {"content": "two."}, piece('{"a": 1}', id=ID, name="add")]
    chunks: list[Json] = [{"choices": [{"delta": delta, "finish_reason": "stop"}], "usage": usage} for delta in deltas]
    reader, decoder = ChatReader(), EventDecoder()
    told: list[ModelEvent] = []
    for frame in frames(chunks):
        assert not reader.finished
        told += reader.read(decoder.feed(frame))
    assert merged([*told, *reader.end()]) == [
        ModelText("One two."),
        *call_events(ID, '{"a": 1}'),
        ModelFinish("tool-calls", Usage(5, 4)),
    ]


def test_empty_choices_deltas_and_details_are_nothing() -> None:
    chunks: list[Json] = [
        {"choices": []},
        {"choices": None, "usage": None},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": None, "tool_calls": None}}]},
        *chat_chunks({"content": "hi"}),
        {"choices": [], "usage": {"prompt_tokens": 5, "prompt_tokens_details": None, "completion_tokens": None}},
    ]
    told = read(ChatReader(), frames(chunks))
    assert told == [ModelText("hi"), ModelFinish("stop", Usage(5))]


@pytest.mark.parametrize("usage", [[1], "5", {"prompt_tokens_details": 7, "input_tokens_details": 7}])
def test_an_answer_does_not_fail_for_counts_of_an_unknown_shape(usage: object) -> None:
    told = read(ChatReader(), frames([*chat_chunks({"content": "hi"}), {"choices": [], "usage": usage}]))
    assert told == [ModelText("hi"), ModelFinish("stop", Usage())]
    delta, _ = text_deltas("hi")
    told = response(delta, {"type": "response.completed", "response": {"usage": usage}})
    assert told == [ModelText("hi"), ModelFinish("stop", Usage())]


ERRORS: list[tuple[object, type[ModelError]]] = [
    ({"code": "server_error", "message": "x"}, ModelUnavailable),
    ({"code": "rate_limit_exceeded", "message": "x"}, ModelUnavailable),
    ({"type": "overloaded_error", "message": "x"}, ModelUnavailable),
    ({"code": 503, "message": "x"}, ModelUnavailable),
    ({"code": 429, "message": "x"}, ModelUnavailable),
    ({"code": "503", "message": "x"}, ModelUnavailable),
    ({"code": "429", "type": "throttling_error", "message": "x"}, ModelUnavailable),
    ({"code": 401, "message": "x"}, ModelAuthError),
    ({"code": "401", "message": "x"}, ModelAuthError),
    ({"code": "invalid_api_key", "message": "x"}, ModelAuthError),
    ({"code": "invalid_prompt", "message": "x"}, ModelRejected),
    ({"code": 400, "message": "x"}, ModelRejected),
    ({"type": "invalid_request_error", "code": None, "message": "x"}, ModelRejected),
    ({"message": "x"}, ModelUnavailable),
    ("something is wrong", ModelUnavailable),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_an_error_in_the_stream_of_either_api_is_told_by_who_must_act(error: object, kind: type[ModelError]) -> None:
    events: list[Json] = [{"error": error}, {"type": "response.failed", "response": {"error": error}}]
    if isinstance(error, dict):
        events.append({"code": None, **error, "type": "error"} if "type" not in error else {"error": error})
    for event in events:
        with pytest.raises(ModelError) as raised:
            response(event)
        assert type(raised.value) is kind
    with pytest.raises(ModelError) as raised:
        read(ChatReader(), frames([{"error": error}]))
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("error", "kind"), [({"code": 502, "message": "x"}, ModelUnavailable), (None, ModelUnavailable)]
)
def test_an_answer_whose_finish_reason_is_an_error_is_none(error: object, kind: type[ModelError]) -> None:
    chunks = chat_chunks({"content": "Half an ans"}, finish="error")
    chunks[-1]["choices"][0]["error"] = error
    with pytest.raises(kind):
        read(ChatReader(), frames(chunks, done=True))


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content-filter"),
        ({"reason": "steered"}, "other"),
        (None, "other"),
    ],
)
def test_an_incomplete_response_says_why(details: Json | None, reason: FinishReason) -> None:
    delta, _ = text_deltas("hi")
    usage = {
        "input_tokens": 5,
        "output_tokens": 4,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    told = response(delta, {"type": "response.incomplete", "response": {"incomplete_details": details, "usage": usage}})
    assert told == [ModelText("hi"), ModelFinish(reason, Usage(5, 4, 3, 2))]


def test_parts_of_a_reasoning_are_set_apart_and_its_seal_is_kept() -> None:
    kind = "response.reasoning_summary_text.delta"
    sealed = {"id": "rs_1", "summary": [{"type": "summary_text", "text": "One."}], "encrypted_content": "xyz"}
    told = response(
        {"type": kind, "output_index": 0, "summary_index": 0, "delta": "One."},
        {"type": kind, "output_index": 0, "summary_index": 1, "delta": "Two."},
        {"type": "response.output_item.done", "output_index": 0, "item": {"type": "reasoning", **sealed}},
        *text_deltas("hi"),
    )
    assert told[:-1] == [ModelReasoning("One.\n\nTwo."), ModelReasoningDone(sealed), ModelText("hi")]


@pytest.mark.parametrize("ends", [[], [{"type": "reasoning", "summary": []}]], ids=["no end", "no id and no seal"])
def test_raw_reasoning_is_ended_by_its_item_or_by_the_text(ends: list[Json]) -> None:
    thought = {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "Hm."}
    done = [{"type": "response.output_item.done", "output_index": 0, "item": item} for item in ends]
    told = response(thought, *done, *text_deltas("hi"))
    assert told[:-1] == [ModelReasoning("Hm."), ModelReasoningDone(), ModelText("hi")]


def test_calls_of_a_response_that_share_a_number_are_two() -> None:
    events: list[Json] = []
    for number, call_id in enumerate((ID, OTHER_ID), 1):
        arguments = f'{{"a": {number}}}'
        item = {"type": "function_call", "call_id": call_id, "name": "add", "arguments": ""}
        events += [
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": arguments},
            {"type": "response.output_item.done", "output_index": 0, "item": {**item, "arguments": arguments}},
        ]
    told = response(*events, *text_deltas())
    assert told[:-1] == [*call_events(ID, '{"a": 1}'), *call_events(OTHER_ID, '{"a": 2}')]


def test_what_was_not_streamed_is_read_from_the_whole_response() -> None:
    call = {"type": "function_call", "call_id": ID, "name": "add", "arguments": '{"a": 1}'}
    said = {"type": "message", "content": [{"type": "output_text", "text": "hi"}, {"type": "refusal", "refusal": "no"}]}
    whole = {"output": [{"type": "reasoning", "id": "rs_1"}, said, call], "usage": None}
    end = {"type": "response.completed", "response": whole}
    told = response(end)
    assert told[:-1] == [ModelText("hino"), *call_events(ID, '{"a": 1}')]
    streamed = [
        {"type": "response.output_text.delta", "output_index": 1, "delta": "hi"},
        {"type": "response.output_item.done", "output_index": 7, "item": call},
    ]
    assert response(*streamed, end)[:-1] == [ModelText("hi"), *call_events(ID, '{"a": 1}')]


PAGE: Json = {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 0, "end_index": 2}
FILE: Json = {"type": "file_citation", "file_id": "file_1", "filename": "A.txt", "index": 0}
OWN: Json = {"type": "file_path", "file_id": "file_2", "index": 0}
SOURCES = [ModelSource("https://a.example", "A"), ModelSource(None, "A.txt", filename="A.txt")]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_annotations_of_a_response_are_sources(is_streamed: bool) -> None:
    if is_streamed:
        added = [{"type": "response.output_text.annotation.added", "annotation": each} for each in (PAGE, FILE, OWN)]
        events = response(*added, *text_deltas("Hi."))
    else:
        content = [{"type": "output_text", "text": "Hi.", "annotations": [PAGE, FILE, OWN, None]}]
        output = [{"type": "message", "content": content}]
        events = response({"type": "response.completed", "response": {"output": output, "usage": None}})
    assert events[:-1] == [ModelText("Hi."), *SOURCES]


@pytest.mark.parametrize("annotations", [None, {}, "x", [None, {"type": "file"}, {"url_citation": 1}]])
def test_an_answer_does_not_fail_for_annotations_of_an_unknown_shape(annotations: object) -> None:
    assert chat({"content": "Hi.", "annotations": annotations})[:-1] == [ModelText("Hi.")]


NOT_FOUND = {
    "vLLM": reply(404, {"detail": "Not Found"}),
    "Ollama": reply(404, "404 page not found"),
    "llama.cpp": reply(404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}),
    "another": reply(405, {"detail": "Method Not Allowed"}),
    "Bedrock": reply(200, {"Output": {"__type": "com.amazon.coral.service#UnknownOperationException"}}),
}


@pytest.mark.parametrize("server_name", NOT_FOUND)
async def test_a_server_without_responses_is_called_through_chat(server_name: str, provider_of: MakeProvider) -> None:
    async with serve(NOT_FOUND[server_name], stream(saying("chat", "Hello."))) as server:
        provider = provider_of("responses", server.base_url, model="llama3")
        for _ in range(2):
            assert text_of(await streamed(provider, ask("Hi."))) == "Hello."
    paths = [head.split(" ")[1] for head in server.heads]
    assert paths == ["/v1/responses", "/v1/chat/completions", "/v1/chat/completions"]


@pytest.mark.parametrize(("status", "requests"), [(404, 2), (400, 1)])
async def test_a_server_with_neither_api_gives_its_first_refusal(
    status: int, requests: int, provider_of: MakeProvider
) -> None:
    missing = {"error": {"code": "model_not_found", "message": "no such model"}}
    async with serve(reply(status, missing), reply(404, {"detail": "Not Found"})) as server:
        with pytest.raises(ModelRejected, match="model_not_found"):
            await streamed(provider_of("responses", server.base_url, model="llama3"), ask("Hi."))
    assert len(server.bodies) == requests, "only an absent API is a reason to call the other one"


async def test_a_server_that_has_answered_is_not_called_otherwise(provider_of: MakeProvider) -> None:
    async with serve(stream(saying("responses", "Hello.")), reply(404, {"detail": "Not Found"})) as server:
        provider = provider_of("responses", server.base_url, model="llama3")
        assert text_of(await streamed(provider, ask("Hi."))) == "Hello."
        with pytest.raises(ModelRejected):
            await streamed(provider, ask("Hi."))
    assert len(server.bodies) == 2
