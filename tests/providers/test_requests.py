"""What is sent to the APIs: typed as the SDKs type it, and never refused for what was stored."""

import json
from dataclasses import replace
from typing import Any

import pytest

from local.model import OfflineModel
from omniagent.ai.prompts import summary_message
from omniagent.ai.providers import get_llm_provider
from omniagent.ai.providers.llm_provider import ModelReasoningDone, ModelRequest, OutputFormat, Overrides
from omniagent.errors import ModelRejected
from omniagent.messages import ORPHAN_ERROR, ChatMessage, Part, ReasoningPart, StepPart, TextPart
from tests.providers.canned import Json, reply, saying, serve, stream
from tests.providers.conftest import MakeProvider, Sent
from tests.providers.helpers import ADD, ALL_APIS, APIS, CITY, answer, ask, called, only, streamed, text_of

SEALED = {"id": "rs_1", "summary": [], "encrypted_content": "sealed"}
QUESTION = ChatMessage.user("[echo:x]")


def chat(*messages: ChatMessage) -> ModelRequest:
    return ModelRequest("Be brief.", messages, [ADD])


async def test_a_turn_with_tools_is_told_to_responses_step_by_step(sent: Sent) -> None:
    turn = answer(
        StepPart(),
        TextPart(text="Adding."),
        called("call_1"),
        called("call_2", output="four"),
        StepPart(),
        TextPart(text="Done."),
    )
    body = await sent("responses", chat(ChatMessage.user("Add."), turn, QUESTION), "gpt-6-sol")
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


async def test_a_turn_with_tools_is_told_to_chat_completions_step_by_step(sent: Sent) -> None:
    turn = answer(StepPart(), called("call_1"), called("call_2"), StepPart(), TextPart(text="Done."))
    body = await sent("chat", chat(ChatMessage.user("Add."), turn, QUESTION), "gpt-6-sol")
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
    "a name that is too long": [StepPart(), called("call_1", name="add" * 50)],
    "half a surrogate pair in an output": [StepPart(), called("call_1", output={"text": "\ud83d"})],
    "an output that is not JSON": [StepPart(), called("call_1", output={"when": complex(1, 2)})],
    "reasoning and nothing after it": [StepPart(), ReasoningPart(text="Hm.", provider_data=SEALED)],
    "empty text": [StepPart(), TextPart(text="")],
    "empty steps": [StepPart(), StepPart(), StepPart()],
    "nothing": [],
}


@pytest.mark.parametrize("api", ALL_APIS)
@pytest.mark.parametrize("name", BROKEN_TURNS)
async def test_no_turn_makes_the_api_refuse_its_next_step_or_the_next_turn(name: str, api: str, sent: Sent) -> None:
    question, said = QUESTION, answer(*BROKEN_TURNS[name])
    await sent(api, chat(question, said))
    await sent(api, chat(ChatMessage.user("Good morning."), said, question))


@pytest.mark.parametrize("api", ALL_APIS)
async def test_the_model_reads_the_arguments_that_it_wrote_wrongly(api: str, sent: Sent) -> None:
    body = await sent(api, chat(QUESTION, answer(StepPart(), called("call_1", input="{oops"))))
    assert '"unparsed": "{oops"' in json.dumps(body).replace('\\"', '"')


@pytest.mark.parametrize("api", APIS)
async def test_the_model_reads_why_a_tool_failed_and_that_a_call_was_interrupted(api: str, sent: Sent) -> None:
    failed = called("call_1", output=None, error="No such city: Atlantis.", public_error="The tool failed.")
    turn = answer(StepPart(), failed, called("call_2", done=False))
    body = await sent(api, chat(ChatMessage.user("Add."), turn, QUESTION))
    items = body["input"] if api == "responses" else body["messages"]
    told = [
        item.get("output") or item.get("content") for item in items if "output" in item or item.get("role") == "tool"
    ]
    assert told == ["No such city: Atlantis.", ORPHAN_ERROR]


async def test_chat_completions_are_never_sent_two_user_messages_in_a_row(sent: Sent) -> None:
    summary = summary_message("My name is Ada.")
    messages = [summary, ChatMessage.user("Hi."), answer(StepPart()), QUESTION]
    body = await sent("chat", chat(*messages), "gpt-6-sol")
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"{summary.text}\n\nHi.\n\n[echo:x]"},
    ]


async def test_chat_completions_are_never_sent_a_user_message_after_a_tools_output(sent: Sent) -> None:
    stopped = answer(StepPart(), called("call_1"), called("call_2"))
    body = await sent("chat", chat(ChatMessage.user("Add."), stopped, QUESTION), "gpt-6-sol")
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert [message["role"] for message in body["messages"]] == roles
    assert body["messages"][-2]["content"]


async def test_reasoning_is_handed_back_within_its_turn_and_not_after(sent: Sent) -> None:
    step = answer(StepPart(), ReasoningPart(text="Hm.", provider_data=SEALED), called("call_1"))
    during = await sent("responses", chat(QUESTION, step), "gpt-6-sol")
    assert [item["type"] for item in during["input"]] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert during["input"][1] == {"type": "reasoning", **SEALED}
    after = await sent("responses", chat(ChatMessage.user("Hi."), step, QUESTION), "gpt-6-sol")
    assert "reasoning" not in [item["type"] for item in after["input"]]


def marked(text: str = "", model: str = "gpt-6-sol", **data: Any) -> ReasoningPart:
    return ReasoningPart(text=text, provider_data={"model": model, **data})


OTHERS: dict[str, list[Part]] = {
    "another model's": [marked("Hm.", model="deepseek", field="reasoning_content"), called("call_1")],
    "that of an answer without tools": [marked("Hm.", field="reasoning_content"), TextPart(text="Hi.")],
    "that of another API": [ReasoningPart(text="Hm.", provider_data=SEALED), called("call_1")],
    "that of a server that does not want it": [ReasoningPart(text="Hm."), called("call_1")],
    "another model's signature": [called("call_1"), marked(model="gemini", call_id="call_1", extra_content={"a": 1})],
}


@pytest.mark.parametrize("name", OTHERS)
async def test_no_other_reasoning_is_sent_to_chat_completions(name: str, sent: Sent) -> None:
    history = [ChatMessage.user("Add."), answer(StepPart(), *OTHERS[name])]
    body = await sent("chat", chat(*history, QUESTION), "gpt-6-sol")
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
async def test_tools_are_strict_and_nothing_is_sent_that_was_not_asked_for(api: str, sent: Sent) -> None:
    body = await sent(api, ask("[echo:x]"), "llama3")
    (tool,) = body["tools"]
    assert (tool if api == "responses" else tool["function"])["strict"] is True
    always = {"responses": {"instructions", "input", "store"}, "chat": {"messages", "stream_options"}}
    assert set(body) == {"model", "tools", "stream"} | always[api]
    assert "tools" not in await sent(api, model="llama3")


@pytest.mark.parametrize(("api", "limit"), [("responses", "max_output_tokens"), ("chat", "max_completion_tokens")])
async def test_a_call_overrides_what_the_provider_was_told(api: str, limit: str, sent: Sent) -> None:
    options: Json = {"temperature": 0.1, "max_output_tokens": 900, "parallel_tool_calls": False, "extra": {"user": "u"}}
    body = await sent(api, ask("[echo:x]"), **options)
    assert (body["temperature"], body[limit], body["user"], body["parallel_tool_calls"]) == (0.1, 900, "u", False)
    called = Overrides(temperature=0.0, extra={"user": "v"})
    body = await sent(api, ask("[echo:x]", overrides=called), **options)
    assert (body["temperature"], body[limit], body["user"]) == (0.0, 900, "v")


@pytest.mark.parametrize("api", APIS)
async def test_a_call_of_another_model_takes_nothing_that_was_meant_for_the_first(api: str, sent: Sent) -> None:
    request = ask("Hi.", overrides=Overrides(model="llama3", temperature=0.3))
    own = await sent(api, ask("Hi.", tools=()), "gpt-6-luna")
    effort = {"reasoning": {"effort": "none"}} if api == "responses" else {"reasoning_effort": "none"}
    assert own.items() >= effort.items()
    body = await sent(api, request, "gpt-6-luna", extra={"user": "u", **effort})
    assert (body["model"], body["temperature"]) == ("llama3", 0.3)
    assert not body.keys() & {"include", "user", *effort}


@pytest.mark.parametrize("api", APIS)
async def test_an_answer_is_asked_for_as_json_of_a_schema(api: str, sent: Sent) -> None:
    chosen = {"verbosity": "low"}
    extra = {"text": chosen} if api == "responses" else chosen
    body = await sent(api, replace(ask("In Lisbon?", tools=()), output=OutputFormat("weather", CITY)), extra=extra)
    schema = {"name": "weather", "schema": CITY, "strict": True}
    if api == "responses":
        assert body["text"] == {"format": {"type": "json_schema", **schema}, **chosen}
    else:
        assert body["response_format"] == {"type": "json_schema", "json_schema": schema}


IDENTIFIED = replace(ask("[echo:x]"), cache_key="session-1", user_id="hash-1")
IDENTIFIERS = {"prompt_cache_key": "session-1", "safety_identifier": "hash-1"}


@pytest.mark.parametrize("api", APIS)
async def test_a_compatible_server_is_not_sent_the_session_and_the_user_unless_it_takes_them(
    api: str, sent: Sent
) -> None:
    assert not IDENTIFIERS.keys() & (await sent(api, IDENTIFIED)).keys()
    assert (await sent(api, IDENTIFIED, identifiers=True)).items() >= IDENTIFIERS.items()
    requests = [replace(IDENTIFIED, cache_key=session * 100) for session in ("a", "a", "b")]
    keys = [(await sent(api, each, identifiers=True))["prompt_cache_key"] for each in requests]
    assert keys[0] == keys[1] != keys[2], "one that is too long is hashed"


@pytest.mark.parametrize("api", APIS)
async def test_openai_itself_is_sent_the_session_and_the_user(api: str, bodies: list[Json]) -> None:
    provider = get_llm_provider("gpt-6-luna", api=api, api_key="none")
    for request in (IDENTIFIED, ask("[echo:x]")):
        with pytest.raises(ModelRejected):
            await streamed(provider, request)
    await provider.aclose()
    assert {name: bodies[0][name] for name in IDENTIFIERS} == IDENTIFIERS
    assert not IDENTIFIERS.keys() & bodies[1].keys()


TODAY = "Today is Monday."
HISTORY = [ChatMessage.user("Hello."), ChatMessage.assistant("Hi.")]
DATED = [*HISTORY, ChatMessage.user("Add."), ChatMessage.system(TODAY)]
STEP = answer(StepPart(), TextPart(text="Adding."), called("call_1"))


def outline(body: Json) -> list[tuple[str, str]]:
    """Role and text of each message."""

    def text(message: Json) -> str:
        content = message["content"]
        return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)

    messages = body.get("input") or body["messages"]
    return [(message["role"], text(message)) for message in messages if message.get("content")]


@pytest.mark.parametrize(
    ("api", "model", "role"),
    [
        ("responses", "gpt-6-sol", "developer"),
        ("chat", "gpt-6-luna", "system"),
        ("messages", "claude-sonnet-5-5", "system"),
    ],
)
async def test_instructions_of_the_turn_follow_the_question_and_stay_there(
    api: str, model: str, role: str, sent: Sent
) -> None:
    first, second, joined = [
        await sent(api, chat(*DATED, *more), model) for more in ([], [STEP], [ChatMessage.user("Quickly.")])
    ]
    assert outline(first)[-2:] == [("user", "Add."), (role, TODAY)]
    field = "input" if api == "responses" else "messages"
    assert second[field][: len(first[field])] == first[field]
    assert (role, TODAY) in outline(joined)


@pytest.mark.parametrize(
    ("api", "model"), [("responses", "llama3"), ("chat", "llama3"), ("messages", "claude-opus-4-6")]
)
async def test_another_model_reads_the_instructions_of_the_turn_first(api: str, model: str, sent: Sent) -> None:
    body = await sent(api, chat(*DATED), model)
    match api:
        case "responses":
            assert body["instructions"] == f"Be brief.\n\n{TODAY}"
        case "chat":
            assert body["messages"][0] == {"role": "system", "content": f"Be brief.\n\n{TODAY}"}
        case _:
            stable = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
            assert body["system"] == [stable, {"type": "text", "text": TODAY}]
    assert outline(body)[-1] == ("user", "Add.")


@pytest.mark.parametrize(
    ("api", "refusal"),
    [
        ("messages", {"type": "invalid_request_error", "message": "role 'system' is not supported on this model"}),
        ("responses", {"message": "Invalid value: 'developer'.", "param": "input[3].role"}),
        ("chat", {"message": "Invalid value: 'system'.", "param": "messages[4].role"}),
    ],
)
async def test_a_model_that_refuses_instructions_late_is_asked_again(
    api: str, refusal: Json, provider_of: MakeProvider
) -> None:
    async with serve(reply(400, {"error": refusal}), stream(saying(api, "Hello."))) as server:
        provider = provider_of(api, server.base_url)
        for _ in range(2):
            assert text_of(await streamed(provider, ModelRequest("Be brief.", DATED))) == "Hello."
    assert [outline(body)[-1][1] == TODAY for body in server.bodies] == [True, False, False]
    assert [TODAY in json.dumps(body) for body in server.bodies] == [True] * 3


@pytest.mark.parametrize("last", [ChatMessage.user(" "), ChatMessage.assistant("Hi.")], ids=["empty", "answered"])
async def test_instructions_of_a_turn_without_a_question_come_first(last: ChatMessage, sent: Sent) -> None:
    body = await sent("messages", chat(ChatMessage.user("Hello."), last, ChatMessage.system(TODAY)))
    assert TODAY in str(body["system"])


async def test_claude_caches_up_to_the_questions(sent: Sent) -> None:
    body = await sent("messages", chat(*DATED, STEP))
    marked = [block["text"] for message in body["messages"] for block in message["content"] if "cache_control" in block]
    assert marked == ["Hello.", "Add."]
    body = await sent("messages", chat(*HISTORY, ChatMessage.user("Add.")))
    assert "cache_control" not in str(body["messages"])


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("model", "is_marked"), [("gpt-6-luna", True), ("gpt-5.6", True), ("gpt-5.4", False)])
async def test_openai_is_told_where_its_cache_ends_if_it_needs_that(
    api: str, model: str, is_marked: bool, sent: Sent
) -> None:
    body = await sent(api, ModelRequest("", DATED), model, identifiers=True)
    marks = ["prompt_cache_breakpoint" in str(item) for item in body["input" if api == "responses" else "messages"]]
    assert marks == [is_marked, False, is_marked, False]
