"""Servers that want their reasoning back: whole turns with tools against what DeepSeek, Gemini and Claude refuse."""

from omniagent import Agent, tool
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers import get_llm_provider
from tests.providers.canned import Json, chat_chunks, claude_text, frames, message_events, serve, stream
from tests.runner.sessions import Sessions

TURNS = 2


@tool
def add(a: int) -> int:
    """Add one."""
    return a + 1


def call(**fields: object) -> Json:
    return {"tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}, **fields}]}


async def asked(*steps: list[Json]) -> list[Json]:
    """Ask twice, with these steps as the answers of each turn, and return the messages of the last request."""
    answers = [stream(frames(chat_chunks(*deltas), done=True)) for deltas in steps]
    sessions = Sessions()
    async with serve(*answers * TURNS) as server:
        provider = get_llm_provider("openai-chat/thinker", base_url=server.base_url)
        for number in range(TURNS):
            runner = TurnOperator(Agent("helper", "", [add]), sessions.session(), provider=provider)
            result = await runner.run(f"Question {number}?")
            assert result.status == "complete"
        await provider.aclose()
    assert len(server.bodies) == TURNS * len(steps)
    messages: list[Json] = server.bodies[-1]["messages"]
    return messages


async def test_later_requests_to_deepseek_carry_the_reasoning_of_every_tool_step() -> None:
    opening: Json = {"role": "assistant", "content": None, "reasoning_content": ""}
    messages = await asked(
        [opening, {"reasoning_content": "Let me "}, {"reasoning_content": "add."}, call(index=0)],
        [opening, call(index=0)],
        [opening, {"reasoning_content": "Good."}, {"content": "Done."}],
    )
    told = [message["reasoning_content"] for message in messages if message["role"] == "assistant"]
    assert told == ["Let me add.", "", "Good.", "Let me add.", ""]


async def test_gemini_gets_the_signature_of_each_call_back() -> None:
    signed = {"google": {"thought_signature": "sealed"}}
    messages = await asked([call(extra_content=signed)], [{"content": "Done."}])
    calls = [message["tool_calls"] for message in messages if "tool_calls" in message]
    assert [each.get("extra_content") for (each,) in calls] == [signed] * TURNS


async def test_openrouter_gets_the_details_of_the_reasoning_back_in_one_piece() -> None:
    text = {"type": "reasoning.text", "index": 0, "signature": None}
    sealed = {"type": "reasoning.encrypted", "index": 1, "data": "sealed"}
    messages = await asked(
        [
            {"reasoning": "Let me ", "reasoning_details": [{**text, "text": "Let me "}]},
            {"reasoning": "add.", "reasoning_details": [{**text, "text": "add."}]},
            {"reasoning_details": [{**text, "text": "", "signature": "signed"}]},
            {**call(index=0), "reasoning_details": [sealed]},
        ],
        [{"content": "Done."}],
    )
    details = [message["reasoning_details"] for message in messages if "tool_calls" in message]
    assert details == [[{**text, "text": "Let me add.", "signature": "signed"}, sealed]] * TURNS


async def test_claude_gets_its_signatures_back_after_an_approval() -> None:
    @tool(approval=True)
    def refund(order: str) -> str:
        """Pay back."""
        return f"refunded {order}"

    thought = {"type": "thinking", "thinking": "Hm.", "signature": "signed-1"}
    redacted = {"type": "redacted_thinking", "data": "sealed"}
    call = {"type": "tool_use", "id": "toolu_0123456789abcdef", "name": "refund", "input": {"order": "42"}}
    waits = stream(frames(message_events(thought, redacted, call, stop="tool_use")))
    async with serve(waits, stream(frames(message_events(claude_text("Done."))))) as server:
        provider = get_llm_provider("anthropic/claude-sonnet-5-5", base_url=server.base_url)
        runner = TurnOperator(Agent("helper", "", [refund]), Sessions().session(), provider=provider)
        [request] = (await runner.run("Refund 42.")).requests
        result = await runner.reply(request.approve()).result()
        await provider.aclose()
    assert (result.status, result.text) == ("complete", "Done.")
    assert server.bodies[1]["messages"][1]["content"] == [thought, redacted, call]
