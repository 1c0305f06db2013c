"""Instructions of one turn: after the question where the model takes them there, else before everything."""

from collections.abc import Sequence

import pytest

from local.model import OfflineModel
from omniagent.ai.providers.llm_provider import ModelRequest
from omniagent.messages import ChatMessage, StepPart, TextPart, ToolPart
from tests.providers.canned import Json, claude_text, frames, message_events, reply, serve, stream
from tests.providers.conftest import MakeProvider
from tests.providers.helpers import ADD, finish_of, streamed, text_of
from tests.providers.test_requests import TYPES

TODAY = "Today is Monday."
CACHED = {"type": "ephemeral"}
CALL = ToolPart(call_id="call_1", name="add", input={"a": 1}, output=3, done=True)
HISTORY = [ChatMessage.user("Hello."), ChatMessage.assistant("Hi.")]
QUESTION = [ChatMessage.user("Add."), ChatMessage.system(TODAY)]
STEP = ChatMessage(role="assistant", parts=[StepPart(), TextPart(text="Adding."), CALL])


async def sent(
    offline: OfflineModel, provider_of: MakeProvider, api: str, model: str, messages: Sequence[ChatMessage]
) -> Json:
    """The body of the request, after the model has accepted it."""
    provider = provider_of(api, offline.base_url, model=model)
    await streamed(provider, ModelRequest("Be brief.", messages, [ADD]))
    body = offline.requests[-1].body
    TYPES[api].validate_python(body)
    return body


def outline(messages: Sequence[Json]) -> list[tuple[str, str]]:
    """Role and text of each message."""

    def text(message: Json) -> str:
        content = message["content"]
        return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)

    return [(message["role"], text(message)) for message in messages if message.get("content")]


@pytest.mark.parametrize(
    ("api", "model", "role"),
    [
        ("responses", "gpt-6-sol", "developer"),
        ("chat", "gpt-6-luna", "system"),
        ("messages", "claude-sonnet-5-5", "system"),
    ],
)
async def test_they_follow_the_question_and_stay_there(
    api: str, model: str, role: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    field = "input" if api == "responses" else "messages"
    first = await sent(offline, provider_of, api, model, [*HISTORY, *QUESTION])
    assert outline(first[field])[-2:] == [("user", "Add."), (role, TODAY)]
    second = await sent(offline, provider_of, api, model, [*HISTORY, *QUESTION, STEP])
    assert second[field][: len(first[field])] == first[field]
    joined = await sent(offline, provider_of, api, model, [*HISTORY, *QUESTION, ChatMessage.user("Quickly.")])
    assert (role, TODAY) in outline(joined[field])


@pytest.mark.parametrize(
    ("api", "model"), [("responses", "llama3"), ("chat", "llama3"), ("messages", "claude-opus-4-6")]
)
async def test_another_model_reads_them_first(
    api: str, model: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    body = await sent(offline, provider_of, api, model, [*HISTORY, *QUESTION])
    match api:
        case "responses":
            assert body["instructions"] == f"Be brief.\n\n{TODAY}"
        case "chat":
            assert body["messages"][0] == {"role": "system", "content": f"Be brief.\n\n{TODAY}"}
        case _:
            stable = {"type": "text", "text": "Be brief.", "cache_control": CACHED}
            assert body["system"] == [stable, {"type": "text", "text": TODAY}]
    assert outline(body.get("input") or body["messages"])[-1] == ("user", "Add.")


async def test_a_model_that_refuses_them_late_is_asked_again(provider_of: MakeProvider) -> None:
    refusal = {"error": {"type": "invalid_request_error", "message": "role 'system' is not supported on this model"}}
    async with serve(reply(400, refusal), stream(frames(message_events(claude_text("Hello."))))) as server:
        provider = provider_of("messages", server.base_url)
        for _ in range(2):
            assert text_of(await streamed(provider, ModelRequest("Be brief.", [*HISTORY, *QUESTION]))) == "Hello."
    assert ["system" in dict(outline(body["messages"])) for body in server.bodies] == [True, False, False]
    assert [TODAY in str(body["system"]) for body in server.bodies] == [False, True, True]


async def test_claude_caches_up_to_the_questions(offline: OfflineModel, provider_of: MakeProvider) -> None:
    body = await sent(offline, provider_of, "messages", "", [*HISTORY, *QUESTION, STEP])
    marked = [block["text"] for message in body["messages"] for block in message["content"] if "cache_control" in block]
    assert marked == ["Hello.", "Add."]
    body = await sent(offline, provider_of, "messages", "", [*HISTORY, ChatMessage.user("Add.")])
    assert "cache_control" not in str(body["messages"])


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize(("model", "is_marked"), [("gpt-6-luna", True), ("gpt-5.6", True), ("gpt-5.4", False)])
async def test_openai_is_told_where_its_cache_ends_if_it_needs_that(
    api: str, model: str, is_marked: bool, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    provider = provider_of(api, offline.base_url, model=model, identifiers=True)
    assert finish_of(await streamed(provider, ModelRequest("", [*HISTORY, *QUESTION]))).reason == "stop"
    body = offline.requests[-1].body
    TYPES[api].validate_python(body)
    marks = ["prompt_cache_breakpoint" in str(item) for item in body["input" if api == "responses" else "messages"]]
    assert marks == [is_marked, False, is_marked, False]
