"""Every event that the offline model sends is one that the installed OpenAI SDK declares."""

import json
from collections.abc import Iterator
from typing import Any, TypeVar, get_args

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from local.model import OfflineModel
from omniagent.network import tls_context
from tests.local.model_tools import Json, function

Checked = TypeVar("Checked", bound=BaseModel)
EVENT_TYPES: dict[str, type[BaseModel]] = {
    get_args(event.model_fields["type"].annotation)[0]: event for event in get_args(get_args(ResponseStreamEvent)[0])
}
WEATHER = function("weather", "Weather in a city.", strict=True, city={"type": "string"})
PROMPTS = {
    "text": "Tell me about rivers.",
    "reasoning": "[reason] Tell me about rivers.",
    "refusal": "[refuse]",
    "length": "[length] Tell me about rivers.",
    "empty": "[empty]",
    "one tool": "[tool:weather]",
    "parallel tools": '[reason] [tool:weather {"city": "Oslo"}] [tool:weather {"city": "Rome"}]',
    "text and tool": "[echo:Let me look.] [tool:weather]",
    "cut off tool": '[length] [tool:weather {"city": "Oslo"}]',
    "broken arguments": "[bad-args:weather]",
    "burst": "[burst:50]",
}


def post(model: OfflineModel, path: str, body: Json) -> httpx.Response:
    body = {"model": "gpt-6-luna", **body}
    return httpx.post(f"{model.base_url}/{path}", json=body, verify=tls_context(), timeout=60)


def events(answer: httpx.Response) -> list[tuple[str, Any]]:
    """Name and data of each server-sent event."""
    assert answer.headers["content-type"] == "text/event-stream"
    found = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((lines.get("event", ""), lines["data"]))
    return [(name, data if data == "[DONE]" else json.loads(data)) for name, data in found]


def check(kind: type[Checked], data: Any) -> Checked:
    """Hold data against an SDK type: nothing required is missing, nothing is there that the type does not know."""
    value = kind.model_validate(data, strict=True)
    assert list(unknown_fields(value)) == []
    return value


def unknown_fields(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        # Compatible servers send reasoning in a field of their own; OpenAI's Chat API sends none.
        yield from (name for name in value.model_extra or {} if name != "reasoning_content")
        value = [getattr(value, name) for name in type(value).model_fields]
    if isinstance(value, list):
        for item in value:
            yield from unknown_fields(item)


def check_items(sent: list[tuple[str, Any]]) -> None:
    """Each item is opened and closed in order."""
    items: list[str] = []
    opened: list[str] = []
    for name, data in sent:
        if name == "response.output_item.added":
            opened.append(data["item"]["id"])
            assert data["output_index"] == len(items)
        elif name == "response.output_item.done":
            items.append(data["item"]["id"])
            assert opened.pop() == items[-1]
            assert opened == []
        elif "item_id" in data:
            assert data["item_id"] == opened[-1]
    assert [item["id"] for item in data["response"]["output"]] == items


@pytest.mark.parametrize("prompt", [*PROMPTS.values(), "[failed] Tell me."], ids=[*PROMPTS, "failed"])
def test_response_events_are_the_sdks_and_items_open_and_close_in_order(model: OfflineModel, prompt: str) -> None:
    answer = post(model, "responses", {"input": prompt, "tools": [WEATHER], "stream": True})
    sent = events(answer)
    for number, (name, data) in enumerate(sent):
        event: Any = check(EVENT_TYPES[name], data)
        assert event.type == name
        assert event.sequence_number == number
    names = [name for name, _ in sent]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] in {"response.completed", "response.incomplete", "response.failed"}
    if names[-1] != "response.failed":  # its last item is left open
        check_items(sent)


@pytest.mark.parametrize(
    ("prompt", "with_usage"),
    [*((prompt, True) for prompt in PROMPTS.values()), (PROMPTS["text"], False)],
    ids=[*PROMPTS, "text without usage"],
)
def test_each_chunk_of_a_completion_is_one_of_the_sdk(model: OfflineModel, prompt: str, with_usage: bool) -> None:
    body = chat_body(prompt) | {"stream": True, "stream_options": {"include_usage": with_usage}}
    *sent, last = events(post(model, "chat/completions", body))
    assert last == ("", "[DONE]")
    chunks = [check(ChatCompletionChunk, data) for _, data in sent]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [with_usage]
    assert sum(choice.finish_reason is not None for chunk in chunks for choice in chunk.choices) == 1


def test_usage_is_exactly_what_was_streamed(model: OfflineModel) -> None:
    sent = events(post(model, "responses", {"input": "[reason] [long:250]", "stream": True}))
    usage = sent[-1][1]["response"]["usage"]
    reasoned = usage["output_tokens_details"]["reasoning_tokens"]
    assert usage["output_tokens"] == sum(name.endswith(".delta") for name, _ in sent) == 250 + reasoned
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_requests_are_kept_without_the_key(model: OfflineModel) -> None:
    headers = {"authorization": "Bearer sk-1"}
    body = {"model": "gpt-6-luna", "input": "Remember this one.", "user": "u1"}
    httpx.post(f"{model.base_url}/responses", json=body, headers=headers, timeout=60)
    kept = model.requests[-1]
    assert (kept.api, kept.body["user"]) == ("responses", "u1")
    assert "user-agent" in kept.headers
    assert "authorization" not in kept.headers


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_the_whole_bodies_are_those_of_the_sdk(model: OfflineModel, prompt: str) -> None:
    check(Response, post(model, "responses", {"input": prompt, "tools": [WEATHER]}).json())
    check(ChatCompletion, post(model, "chat/completions", chat_body(prompt)).json())


def chat_body(prompt: str) -> Json:
    tool = {name: value for name, value in WEATHER.items() if name != "type"}
    return {"messages": [{"role": "user", "content": prompt}], "tools": [{"type": "function", "function": tool}]}
