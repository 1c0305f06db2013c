"""What the real API refuses, the offline model refuses too."""

from typing import Any

import httpx
import pytest

from local.model import OfflineModel
from omniagent.network import tls_context
from tests.local.model_tools import TEXT, Json, function, schema

USER = {"role": "user", "content": "Hello"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "lookup", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "found"}
REASONING: Json = {"type": "reasoning", "id": "rs_1", "summary": []}
ASKED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}],
}
ANSWERED = {"role": "tool", "tool_call_id": "call_1", "content": "found"}


def post(server: OfflineModel, path: str, **body: Any) -> httpx.Response:
    body = {"model": "gpt-6-luna", **body}
    return httpx.post(f"{server.base_url}/{path}", json=body, verify=tls_context(), timeout=60)


def refusal(answer: httpx.Response) -> str:
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return str(error["message"])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([USER, CALL], "No tool output found for function call call_1."),
        ([USER, CALL, USER], "No tool output found for function call call_1."),
        ([USER, OUTPUT], "No tool call found for function call output with call_id call_1."),
        ([OUTPUT, CALL, USER], "No tool call found for function call output with call_id call_1."),
        ([REASONING, USER], "Item 'rs_1' of type 'reasoning' was provided without its required following item."),
        ([CALL | {"id": "call_1"}, OUTPUT], "Expected an ID that begins with 'fc'."),
        ([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "Invalid value: 'text'."),
        ([{"role": "assistant", "content": [{"type": "input_text", "text": "Hi"}]}], "Invalid value: 'input_text'."),
        ([{"role": "user"}], "Missing required parameter: 'input[0].content'."),
    ],
)
def test_a_broken_history_is_refused_by_responses(model: OfflineModel, items: list[Json], message: str) -> None:
    assert message in refusal(post(model, "responses", input=items))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([USER, ASKED], "did not have response messages: call_1"),
        ([USER, ASKED, USER, ANSWERED], "did not have response messages: call_1"),
        ([USER, ANSWERED], "must be a response to a preceeding message with 'tool_calls'"),
        ([USER, ASKED, ANSWERED, ANSWERED], "must be a response to a preceeding message with 'tool_calls'"),
        ([{"role": "user", "content": None}], "expected a string, got null"),
        ([{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], "Invalid value: 'input_text'."),
        ([USER, {"role": "assistant", "content": "x", "tool_calls": []}], "empty array"),
        ([], "Missing required parameter: 'messages'."),
        ([{"content": "Hi"}], "Missing required parameter: 'messages[0].role'."),
    ],
)
def test_a_broken_history_is_refused_by_chat(model: OfflineModel, messages: list[Json], message: str) -> None:
    assert message in refusal(post(model, "chat/completions", messages=messages))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (schema(a=TEXT) | {"additionalProperties": True}, "In context=(), 'additionalProperties' is required"),
        (schema(a=TEXT) | {"required": []}, "Missing 'a'."),
        (schema(a=schema(b=TEXT) | {"required": []}), "In context=('properties', 'a'), 'required' is required"),
        (schema(a=TEXT | {"default": "x"}), "In context=('properties', 'a'), 'default' is not permitted."),
        (schema(a={"anyOf": [{"oneOf": []}]}), "'oneOf' is not permitted."),
        (schema(a={"type": "array", "items": {"type": "object"}}), "In context=('properties', 'a', 'items')"),
        (schema(a={"$ref": "#/$defs/A", "title": "A"}), "$ref cannot have keywords {'title'}."),
        ({"type": "string"}, "schema must be a JSON Schema of 'type: \"object\"'"),
    ],
)
def test_a_schema_that_strict_mode_does_not_allow_is_refused(
    model: OfflineModel, parameters: Json, message: str
) -> None:
    tool = function("lookup", strict=True) | {"parameters": parameters}
    assert message in refusal(post(model, "responses", input="Hello", tools=[tool]))
    wrapped = {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
    assert message in refusal(post(model, "chat/completions", messages=[USER], tools=[wrapped]))


OUTPUTS: list[tuple[Json, str]] = [
    ({"name": "answer", "schema": schema(a=TEXT) | {"required": []}, "strict": True}, "Missing 'a'."),
    ({"name": "answer", "schema": {"type": "string"}, "strict": True}, "schema must be a JSON Schema"),
    ({"name": "an answer", "schema": schema()}, "does not match pattern"),
    ({"schema": schema()}, "Missing required parameter"),
    ({"name": "answer"}, "Missing required parameter"),
]


@pytest.mark.parametrize(("output", "message"), OUTPUTS)
def test_a_wrong_schema_of_the_answer_is_refused(model: OfflineModel, output: Json, message: str) -> None:
    kind = {"type": "json_schema"}
    assert message in refusal(post(model, "responses", input="Hello", text={"format": kind | output}))
    wrapped = kind | {"json_schema": output}
    assert message in refusal(post(model, "chat/completions", messages=[USER], response_format=wrapped))


def test_a_schema_that_is_not_strict_may_be_anything_with_properties(model: OfflineModel) -> None:
    tool = function("lookup") | {"parameters": {"type": "object", "properties": {"a": TEXT | {"default": "x"}}}}
    assert post(model, "responses", input="Hello", tools=[tool]).status_code == 200


def test_a_tool_needs_a_name_that_the_api_takes(model: OfflineModel) -> None:
    assert "does not match pattern" in refusal(post(model, "responses", input="Hello", tools=[function("look up")]))


def test_an_empty_list_of_tools_is_refused_by_chat_only(model: OfflineModel) -> None:
    assert post(model, "responses", input="Hello", tools=[]).status_code == 200
    assert "empty array" in refusal(post(model, "chat/completions", messages=[USER], tools=[]))


@pytest.mark.parametrize("name", ["prompt_cache_key", "safety_identifier"])
def test_an_identifier_has_64_characters_at_most(model: OfflineModel, name: str) -> None:
    assert post(model, "responses", input="Hello", **{name: "x" * 64}).status_code == 200
    assert "string too long" in refusal(post(model, "responses", input="Hello", **{name: "x" * 65}))


def test_a_request_without_what_it_needs_is_refused(model: OfflineModel) -> None:
    assert "must provide a model" in refusal(post(model, "responses", model=None, input="Hello"))
    assert "Missing required parameter: 'input'" in refusal(post(model, "responses"))
    assert "not found" in refusal(post(model, "responses", input="Hello", previous_response_id="resp_1"))
    unreadable = httpx.post(f"{model.base_url}/responses", content=b"{", timeout=60)
    assert "could not parse" in refusal(unreadable)


def document(media_type: str, kind: str = "document") -> Json:
    return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": "eA=="}}


@pytest.mark.parametrize(
    ("path", "part", "message"),
    [
        ("responses", {"type": "input_image", "image_url": "data:image/tiff;base64,eA=="}, "unsupported image"),
        ("responses", {"type": "input_file", "file_data": "data:text/plain;base64,eA=="}, "'filename'"),
        ("responses", {"type": "input_audio", "input_audio": {}}, "Invalid value: 'input_audio'."),
        (
            "chat/completions",
            {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,eA=="}},
            "supported format: .pdf but got .txt",
        ),
        ("chat/completions", {"type": "input_audio", "input_audio": {}}, "does not support audio input"),
        ("messages", document("image/tiff", "image"), "Input should be 'image/jpeg' or 'image/png'"),
        ("messages", document("text/plain"), "Input should be 'application/pdf'"),
        ("messages", {"type": "input_audio"}, "does not match any of the expected tags"),
    ],
)
def test_a_file_that_the_api_does_not_take_is_refused(model: OfflineModel, path: str, part: Json, message: str) -> None:
    asked = {"input" if path == "responses" else "messages": [{"role": "user", "content": [part]}]}
    answer = post(model, path, **asked, **({"max_tokens": 9} if path == "messages" else {}))
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
