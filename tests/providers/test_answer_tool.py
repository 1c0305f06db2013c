"""Typed answers of models that take no schema: one tool, forced where the model allows it, read as text."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from omniagent.ai.providers.llm_provider import ModelToolCall, OutputFormat, ToolSpec
from omniagent.messages import FinishReason
from tests.providers.canned import Json, chat_chunks, claude_text, frames, message_events, reply, serve, stream
from tests.providers.conftest import MakeProvider
from tests.providers.helpers import ADD, CITY, ask, finish_of, only, streamed, text_of

ANSWER = '{"city": "Lisbon"}'
FORCIBLE = "claude-haiku-5-5"


def claude_call(name: str, arguments: str) -> Json:
    pieces = [arguments[:4], arguments[4:]]
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return {"type": "tool_use", "id": f"toolu_{name}_4f1a93c07d2e", "name": name, "input": {}, "deltas": deltas}


def calling(api: str, name: str) -> list[bytes]:
    """The frames of an answer that writes a text and calls one tool."""
    call = {"id": "call_4f1a93c07d2e", "name": name, "arguments": ANSWER}
    if api == "messages":
        return frames(message_events(claude_text("Here it is."), claude_call(name, ANSWER), stop="tool_use"))
    if api == "chat":
        function = {"name": name, "arguments": ANSWER}
        piece = {"index": 0, "id": call["id"], "type": "function", "function": function}
        deltas: list[Json] = [{"content": "Here it is."}, {"tool_calls": [piece]}]
        return frames(chat_chunks(*deltas, finish="tool_calls"), done=True)
    item = {"type": "function_call", "call_id": call["id"], "name": name, "arguments": ANSWER}
    return frames(
        [
            {"type": "response.output_text.delta", "output_index": 0, "delta": "Here it is."},
            {"type": "response.output_item.done", "output_index": 1, "item": item},
            {"type": "response.completed", "response": {"status": "completed", "usage": None}},
        ]
    )


REFUSED = {"messages": "output_config.format", "chat": "response_format", "responses": "text.format"}
FORCED = {
    "messages": ({"type": "tool", "name": "City"}, {"type": "any"}),
    "chat": ({"type": "function", "function": {"name": "City"}}, "required"),
    "responses": ({"type": "function", "name": "City"}, "required"),
}


@pytest.mark.parametrize("api", ["messages", "chat", "responses"])
@pytest.mark.parametrize("tools", [(), (ADD,)], ids=["alone", "beside a tool"])
async def test_an_api_that_refuses_the_schema_answers_by_a_forced_tool(
    api: str, tools: Sequence[ToolSpec], provider_of: MakeProvider
) -> None:
    refusal = reply(400, {"error": {"message": f"{REFUSED[api]}: Extra inputs are not permitted"}})
    request = replace(ask("Where?", tools=tools), output=OutputFormat("City", CITY))
    async with serve(refusal, stream(calling(api, "City"))) as server:
        provider = provider_of(api, server.base_url, FORCIBLE if api == "messages" else "llama3")
        events = await streamed(provider, request)
    assert (text_of(events), finish_of(events).reason) == (ANSWER, "stop"), "the text beside the call is dropped"
    assert only(events, ModelToolCall) == []
    native, by_tool = server.bodies
    assert "tool_choice" not in native
    assert by_tool["tool_choice"] == FORCED[api][len(tools)]
    assert len(by_tool["tools"]) == len(tools) + 1


@pytest.mark.parametrize(
    ("blocks", "text", "calls", "reason"),
    [
        ([claude_text(ANSWER)], ANSWER, 0, "stop"),
        ([claude_call("City", ANSWER), claude_call("City", ANSWER)], ANSWER, 0, "stop"),
        ([claude_text("One moment."), claude_call("add", "{}")], "One moment.", 1, "tool-calls"),
        ([claude_call("add", "{}"), claude_call("City", ANSWER)], "", 1, "tool-calls"),
    ],
    ids=["in text", "twice", "another tool first", "together with another tool"],
)
async def test_only_a_final_answer_is_read_from_the_tool(
    blocks: list[Json], text: str, calls: int, reason: FinishReason, provider_of: MakeProvider
) -> None:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    request = replace(ask("Where?"), output=OutputFormat("City", CITY, strict=False))
    async with serve(stream(frames(message_events(*blocks, stop=stop)))) as server:
        events = await streamed(provider_of("messages", server.base_url), request)
    assert (text_of(events), len(only(events, ModelToolCall)), finish_of(events).reason) == (text, calls, reason)
    assert server.bodies[0]["tool_choice"] == {"type": "auto"}, "this model refuses a forced tool"


async def test_the_tool_for_the_answer_shares_no_name_with_another(provider_of: MakeProvider) -> None:
    request = replace(ask("Where?"), output=OutputFormat(ADD.name, CITY, strict=False))
    async with serve(stream(frames(message_events(claude_call(f"{ADD.name}_", ANSWER), stop="tool_use")))) as server:
        events = await streamed(provider_of("messages", server.base_url), request)
    assert json.loads(text_of(events)) == {"city": "Lisbon"}
    assert [tool["name"] for tool in server.bodies[0]["tools"]] == [ADD.name, f"{ADD.name}_"]
