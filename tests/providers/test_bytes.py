"""Bytes become the same events wherever they were cut, and garbage becomes nothing but a `ModelError`."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.model import chat, messages, responses
from local.model.answer import Answer, Usage
from local.model.conversation import Call
from omniagent.ai.providers.anthropic.anthropic_messages import MessageReader
from omniagent.ai.providers.llm_provider import ModelText, ModelToolCall
from omniagent.ai.providers.openai.openai_chat import ChatReader
from omniagent.ai.providers.openai.openai_responses import ResponseReader
from omniagent.ai.providers.stream_reader import MAX_EVENT_BYTES, EventDecoder, ModelStreamReader
from omniagent.errors import ModelError, ModelStreamBroken
from tests.providers.canned import Json, chat_chunks, claude_text, frames, message_events, text_deltas
from tests.providers.helpers import merged, only, read, text_of

READERS: dict[str, type[ModelStreamReader]] = {
    "responses": ResponseReader,
    "chat": ChatReader,
    "messages": MessageReader,
}
ANSWER = Answer(
    reasoning="Let me see.",
    text="Grüße, 世界 👋\n\ndata: not a field",
    calls=(Call("add", '{"a": 1}'), Call("add", '{"b": "ü"}')),
    finish="tool_calls",
)
USAGE = Usage(5, 40, 4)
BODIES = {
    "responses": b"".join(frame.data for frame in responses.build({"model": "m"}, ANSWER, USAGE).frames),
    "chat": b"".join(
        frame.data
        for frame in chat.build({"model": "m", "stream_options": {"include_usage": True}}, ANSWER, USAGE).frames
    ),
    "messages": b"".join(frame.data for frame in messages.build({"model": "m"}, ANSWER, USAGE).frames),
}


def pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % len(body) for cut in cuts), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize(
    ("api", "line_end"),
    [("responses", b"\n"), ("chat", b"\n"), ("messages", b"\n"), ("responses", b"\r\n"), ("responses", b"\r")],
)
@given(cuts=st.lists(st.integers(min_value=0), max_size=30))
def test_the_events_do_not_depend_on_where_the_bytes_were_cut(api: str, line_end: bytes, cuts: list[int]) -> None:
    body = BODIES[api].replace(b"\n", line_end)
    whole = merged(read(READERS[api](), [BODIES[api]]))
    assert merged(read(READERS[api](), pieces(body, cuts))) == whole
    assert text_of(whole) == ANSWER.text


@pytest.mark.parametrize("api", READERS)
@given(cut=st.integers(min_value=0))
def test_a_stream_cut_short_is_broken_or_complete_but_never_wrong(api: str, cut: int) -> None:
    body = BODIES[api][: cut % len(BODIES[api])]
    try:
        told = read(READERS[api](), [body])
    except ModelStreamBroken:
        return
    assert text_of(told) == ANSWER.text
    assert [call.arguments for call in only(told, ModelToolCall)] == [call.arguments for call in ANSWER.calls]


@pytest.mark.parametrize("api", READERS)
@given(garbage=st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([b"data: ", b"\n\n", b"{}", b"[DONE]"]))))
def test_garbage_bytes_raise_nothing_but_model_errors(api: str, garbage: list[bytes]) -> None:
    with pytest.raises(ModelError):
        read(READERS[api](), garbage)


FIELDS = """type item delta response output_index call_id name arguments error code choices finish_reason usage
content tool_calls function index id refusal reasoning encrypted_content summary input_tokens_details
message content_block text thinking signature partial_json input stop_reason stop_details output_tokens"""
KINDS = """response.output_text.delta response.output_item.added response.output_item.done response.refusal.delta
response.function_call_arguments.delta response.reasoning_text.delta response.completed response.incomplete
response.failed error function_call reasoning message
message_start content_block_start content_block_delta content_block_stop message_delta text thinking tool_use
text_delta thinking_delta input_json_delta signature_delta pause_turn refusal end_turn"""
FIELD = st.sampled_from(FIELDS.split())
KIND = st.sampled_from(KINDS.split())
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | KIND
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(FIELD, inner, max_size=3),
    max_leaves=6,
)
EVENT = st.dictionaries(FIELD, VALUE, max_size=4) | st.builds(
    lambda kind, rest: {**rest, "type": kind}, KIND, st.dictionaries(FIELD, VALUE, max_size=4)
)


@pytest.mark.parametrize("api", READERS)
@given(events=st.lists(EVENT, max_size=4))
def test_events_of_a_wrong_shape_raise_nothing_but_model_errors(api: str, events: list[Json]) -> None:
    body = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    try:
        told = read(READERS[api](), [body])
    except ModelError:
        return
    assert all(isinstance(event.text, str) for event in only(told, ModelText))


@pytest.mark.parametrize("body", ["data: 5\n\n", "data: [1]\n\n", "data: {\n\n", "data: " + "[" * 100_000 + "\n\n"])
def test_what_is_not_a_json_object_breaks_the_stream(body: str) -> None:
    with pytest.raises(ModelStreamBroken):
        read(ResponseReader(), [body.encode()])


def test_what_arrived_together_with_garbage_is_not_lost() -> None:
    told = ResponseReader().read(EventDecoder().feed(b"".join([*frames(text_deltas("a", "b")[:2]), b"data: {\n\n"])))
    assert next(told) == ModelText("ab")
    with pytest.raises(ModelStreamBroken):
        next(told)


def test_an_event_without_an_end_does_not_fill_the_memory() -> None:
    decoder = EventDecoder()
    assert list(decoder.feed(b"x" * MAX_EVENT_BYTES)) == []
    with pytest.raises(ModelStreamBroken):
        list(decoder.feed(b"x"))


def test_deltas_that_arrive_together_are_one_event() -> None:
    body = frames(text_deltas("a", "b", "c"))
    assert only(read(ResponseReader(), [b"".join(body)]), ModelText) == [ModelText("abc")]
    assert only(read(ResponseReader(), body), ModelText) == [ModelText("a"), ModelText("b"), ModelText("c")]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)),
    st.booleans(),
    st.sampled_from([None, (",", ":")]),
    st.sampled_from(["", "    "]),
)
def test_deltas_of_messages_are_joined_whatever_they_say(
    texts: list[str], ascii_only: bool, separators: tuple[str, str] | None, padding: str
) -> None:
    def frame(event: Json) -> bytes:
        data = json.dumps(event, ensure_ascii=ascii_only, separators=separators)
        return f"event: {event['type']}\ndata: {data[:-1]}{padding}{data[-1]}\n\n".encode()

    body = b"".join(map(frame, message_events(claude_text(*texts))))
    assert only(read(MessageReader(), [body]), ModelText) == ([ModelText("".join(texts))] if texts else [])


def test_comments_ids_and_data_over_several_lines_are_read_as_the_standard_says() -> None:
    first, second = '{"choices": [', ' {"delta": {"content": "hi"}, "finish_reason": "stop"}]}'
    body = f": ping\n\nid: 7\nretry: 5\ndata:{first}\ndata: {second}\n\n"
    assert text_of(read(ChatReader(), [body.encode()])) == "hi"


def test_a_last_event_without_its_empty_line_counts() -> None:
    body = b"".join(frames(chat_chunks({"content": "hi"}), done=True))
    assert text_of(read(ChatReader(), [body.rstrip()])) == "hi"


@pytest.mark.parametrize(
    ("sent", "read_as"),
    [
        (r"\ud83d", "\ufffd"),
        (r"a\uDC4Bb", "a\ufffdb"),
        (r"\ud83d\udc4b", "👋"),
        (r"\ud55c\uae00", "한글"),
        (r"\\ud83d", r"\ud83d"),
    ],
)
def test_half_a_surrogate_pair_does_not_pass(sent: str, read_as: str) -> None:
    body = b"".join(frames(text_deltas("@"))).replace(b'"@"', f'"{sent}"'.encode())
    assert text_of(read(ResponseReader(), [body])) == read_as


def test_bytes_that_are_not_utf8_do_not_pass() -> None:
    body = b"".join(frames(text_deltas("@"))).replace(b"@", b"a\xff\xed\xa0\xbdb")
    text = text_of(read(ResponseReader(), [body]))
    assert text.startswith("a\ufffd")
    assert text.encode().decode() == text


@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 2], [3]])
def test_a_byte_order_mark_before_the_first_event_is_dropped(cuts: list[int]) -> None:
    body = b"\xef\xbb\xbf" + b"".join(frames(chat_chunks({"content": "hi"}), done=True))
    assert text_of(read(ChatReader(), pieces(body, cuts))) == "hi"
