"""Typed answers of models that take no schema: one tool, forced where the model allows it, read as text."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from omniagent.ai.providers.llm_provider import ModelToolCall, ModelToolDelta, OutputFormat, ToolSpec
from omniagent.messages import FinishReason
from tests.providers.canned import Json, claude_text, frames, message_events, reply, saying, serve, stream, tool_use
from tests.providers.conftest import MakeProvider
from tests.providers.helpers import ADD, CITY, ask, finish_of, only, streamed, text_of

ANSWER = '{"city": "Lisbon"}'
FORCIBLE = "claude-haiku-5-5"


def claude_call(name: str, arguments: str) -> Json:
    return tool_use(f"toolu_{name}_4f1a93c07d2e", name, arguments[:4], arguments[4:])


REFUSED = {"messages": "output_config.format", "chat": "response_format", "responses": "text.format"}
FORCED = {
    "messages": ({"type": "tool", "name": "City"}, {"type": "any"}),
    "chat": ({"type": "function", "function": {"name": "City"}}, "required"),
    "responses": ({"type": "function", "name": "City"}, "required"),
}


@pytest.mark.parametrize("api", ["messages", "chat", "responses"])
@pytest.mark.parametrize("tools", [(), (ADD,)], ids=["alone", "beside a tool"])
@pytest.mark.parametrize("is_whole", [True, False], ids=["the field", "its part"])
async def test_an_api_that_refuses_the_schema_answers_by_a_forced_tool(
    api: str, tools: Sequence[ToolSpec], is_whole: bool, provider_of: MakeProvider
) -> None:
    name = REFUSED[api].partition(".")[0] if is_whole else REFUSED[api]
    refusal = reply(400, {"error": {"message": f"{name}: Extra inputs are not permitted"}})
    request = replace(ask("Where?", tools=tools), output=OutputFormat("City", CITY))
    async with serve(refusal, stream(saying(api, "Here it is.", call=("call_4f1a93c07d2e", "City", ANSWER)))) as server:
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
    assert len(only(events, ModelToolDelta)) == calls, "a piece of a call that nobody sees fails the turn"
    assert server.bodies[0]["tool_choice"] == {"type": "auto"}, "this model refuses a forced tool"


async def test_an_answer_that_is_cut_off_in_the_tool_is_not_complete(provider_of: MakeProvider) -> None:
    request = replace(ask("Where?"), output=OutputFormat("City", CITY, strict=False))
    async with serve(stream(frames(message_events(claude_call("City", ANSWER[:9]), stop="max_tokens")))) as server:
        events = await streamed(provider_of("messages", server.base_url), request)
    assert (text_of(events), finish_of(events).reason) == (ANSWER[:9], "length")


async def test_the_tool_for_the_answer_shares_no_name_with_another(provider_of: MakeProvider) -> None:
    request = replace(ask("Where?"), output=OutputFormat(ADD.name, CITY, strict=False))
    async with serve(stream(frames(message_events(claude_call(f"{ADD.name}_", ANSWER), stop="tool_use")))) as server:
        events = await streamed(provider_of("messages", server.base_url), request)
    assert json.loads(text_of(events)) == {"city": "Lisbon"}
    assert [tool["name"] for tool in server.bodies[0]["tools"]] == [ADD.name, f"{ADD.name}_"]
