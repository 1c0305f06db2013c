"""How servers that speak Chat Completions their own way call tools."""

import json

import pytest

from omniagent.ai.providers.llm_provider import (
    ModelFinish,
    ModelToolCall,
)
from omniagent.errors import ModelStreamBroken
from omniagent.messages import Usage
from tests.providers.canned import Json
from tests.providers.chat_streams import ID, OTHER_ID, call_events, chat, piece
from tests.providers.helpers import only

TOOL_STREAMS: dict[str, list[Json]] = {
    "as OpenAI does": [
        piece(index=0, id=ID, name="add"),
        piece('{"a"', index=0),
        piece(": 1}", index=0),
        piece(index=1, id=OTHER_ID, name="add"),
        piece('{"a": 2}', index=1),
    ],
    "each call in one chunk": [
        piece('{"a": 1}', index=0, id=ID, name="add"),
        piece('{"a": 2}', index=1, id=OTHER_ID, name="add"),
    ],
    "both calls in one chunk": [
        {
            "tool_calls": [
                {"index": 0, "id": ID, "function": {"name": "add", "arguments": '{"a": 1}'}},
                {"index": 1, "id": OTHER_ID, "function": {"name": "add", "arguments": '{"a": 2}'}},
            ]
        }
    ],
    "no index": [
        piece('{"a"', id=ID, name="add"),
        piece(": 1}"),
        piece('{"a": 2', id=OTHER_ID, name="add"),
        piece("}"),
    ],
    "every call at index 0": [
        piece('{"a": 1}', index=0, id=ID, name="add"),
        piece('{"a": 2}', index=0, id=OTHER_ID, name="add"),
    ],
    "name and id again with each piece": [
        piece('{"a"', index=0, id=ID, name="add"),
        piece(": 1}", index=0, id=ID, name="add"),
        piece('{"a": 2}', index=1, id=OTHER_ID, name="add"),
    ],
    "the same name and index again with each piece, and no id until the end": [
        piece('{"a"', index=0, id=ID, name="add"),
        piece(": 1}", index=0, name="add"),
        piece("", index=0, name="add"),
        piece('{"a": 2}', index=1, id=OTHER_ID, name="add"),
    ],
    "a new id with each piece": [
        piece('{"a"', index=0, id=ID, name="add"),
        piece(": 1}", index=0, id="zzz"),
        piece('{"a": 2}', index=1, id=OTHER_ID, name="add"),
    ],
}


@pytest.mark.parametrize("habit", TOOL_STREAMS)
@pytest.mark.parametrize("finish", ["tool_calls", "function_call", "stop"])
def test_tool_calls_are_read_however_they_are_cut(habit: str, finish: str) -> None:
    told = chat(*TOOL_STREAMS[habit], finish=finish)
    assert told == [
        *call_events(ID, '{"a": 1}'),
        *call_events(OTHER_ID, '{"a": 2}'),
        ModelFinish("tool-calls", Usage()),
    ]


def test_calls_whose_pieces_are_mixed_are_told_when_both_are_complete() -> None:
    told = chat(
        piece('{"a"', index=0, id=ID, name="add"),
        piece('{"a"', index=1, id=OTHER_ID, name="add"),
        piece(": 1}", index=0),
        piece(": 2}", index=1),
        finish="tool_calls",
    )
    assert only(told, ModelToolCall) == [
        ModelToolCall(ID, "add", '{"a": 1}'),
        ModelToolCall(OTHER_ID, "add", '{"a": 2}'),
    ]


@pytest.mark.parametrize("names", [("add", "add"), ("add", "subtract")])
@pytest.mark.parametrize("at", [{"index": 0, "id": ""}, {"index": 0}, {}])
def test_calls_without_ids_at_one_index_are_told_apart(at: Json, names: tuple[str, str]) -> None:
    told = chat(*(piece('{"a": 1}', name=name, **at) for name in names), finish="stop")
    calls = only(told, ModelToolCall)
    assert [(call.name, call.arguments) for call in calls] == [(name, '{"a": 1}') for name in names]
    assert len({call.call_id for call in calls}) == 2


@pytest.mark.parametrize("call_id", ["call_0", "functions.add:0", "functions.convert2pdf24:12", "0", "toolcall1", ""])
def test_a_call_with_only_a_counter_gets_an_id_unique_across_sessions(call_id: str) -> None:
    name = call_id.partition(".")[2].partition(":")[0] or "add"
    told = [only(chat(piece("{}", index=0, id=call_id, name=name), finish="stop"), ModelToolCall) for _ in range(2)]
    ids = {call.call_id for calls in told for call in calls}
    assert len(ids) == 2
    assert call_id not in ids


@pytest.mark.parametrize(
    "call_id", [ID, OTHER_ID, "chatcmpl-tool-4b825dc642cb6eb9a060e54bf8d69288", "toolu_01A09q90qw90lq91"]
)
def test_a_call_keeps_an_id_that_is_random(call_id: str) -> None:
    (call,) = only(chat(piece("{}", index=0, id=call_id, name="add"), finish="stop"), ModelToolCall)
    assert call.call_id == call_id


def test_a_call_without_arguments_and_ids_is_not_the_next_one() -> None:
    told = chat(piece(name="now"), piece('{"a": 1}', name="add"), finish="tool_calls")
    assert [(call.name, call.arguments) for call in only(told, ModelToolCall)] == [("now", "{}"), ("add", '{"a": 1}')]


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_call_that_was_cut_off_before_its_arguments_has_none_that_can_be_read(finish: str) -> None:
    (call,) = only(chat(piece(index=0, id=ID, name="add"), finish=finish), ModelToolCall)
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(call.arguments)


def test_a_call_without_a_name_breaks_the_stream() -> None:
    with pytest.raises(ModelStreamBroken):
        chat(piece("{}", index=0, id=ID), finish="tool_calls")
