"""What a model refuses is not sent; what its API refuses by name is left out, once and from then on."""

import pytest

from local.model import OfflineModel
from omniagent.ai.providers.llm_provider import Overrides
from omniagent.ai.providers.model_rules import rules_of
from omniagent.errors import ConfigurationError, ModelRejected
from tests.providers.canned import Json, chat_chunks, frames, reply, serve, stream, text_deltas
from tests.providers.conftest import MakeProvider, Sent
from tests.providers.helpers import APIS, ask, streamed, text_of

HELLO = stream(frames(text_deltas("Hello", ".")))
SAMPLING = {"temperature": 0.5, "top_p": 0.9}


def effort(api: str, name: str | None) -> Json:
    if name is None:
        return {}
    return {"reasoning": {"effort": name}} if api == "responses" else {"reasoning_effort": name}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("model", "chosen", "takes"),
    [
        ("gpt-6-luna", "none", True),
        ("gpt-6-luna", None, True),
        ("gpt-6-luna", "low", False),
        ("gpt-6-sol", None, False),
        ("gpt-6-sol", "none", True),
        ("us.openai.gpt-6-sol", "high", False),
        ("gpt-6-astra", None, False),
        ("o9-mini", None, False),
        ("gpt-6-chat-latest", None, True),
        ("llama3", None, True),
        ("claude-opus-5", None, False),
    ],
)
async def test_sampling_is_sent_only_to_a_model_that_takes_it(
    model: str, chosen: str | None, takes: bool, api: str, provider_of: MakeProvider
) -> None:
    answer = HELLO if api == "responses" else stream(frames(chat_chunks({"content": "Hello."})))
    async with serve(answer) as server:
        provider = provider_of(api, server.base_url, model=model, extra=SAMPLING | effort(api, chosen))
        await streamed(provider, ask("Hi.", tools=()))
    assert SAMPLING.keys() & server.bodies[0].keys() == (SAMPLING.keys() if takes else set())


@pytest.mark.parametrize("chosen", [None, "high"])
@pytest.mark.parametrize("model", ["gpt-6-sol", "gpt-6-luna"])
async def test_chat_tools_of_gpt_6_are_called_without_reasoning(model: str, chosen: str | None, sent: Sent) -> None:
    body = await sent("chat", ask("[echo:x]"), model, extra=effort("chat", chosen))
    assert body["reasoning_effort"] == "none"


async def test_a_model_without_chat_tools_names_the_api_to_set(
    offline: OfflineModel, provider_of: MakeProvider
) -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API=responses"):
        await streamed(provider_of("chat", offline.base_url, model="gpt-6-astra"), ask("Hi."))


@pytest.mark.parametrize("api", APIS)
async def test_an_effort_that_the_model_lacks_becomes_the_nearest(api: str, sent: Sent) -> None:
    body = await sent(api, model="gpt-6-astra", extra=effort(api, "none"))
    assert body.items() >= effort(api, "low").items()


@pytest.mark.parametrize(("api", "limit"), [("responses", "max_output_tokens"), ("chat", "max_completion_tokens")])
async def test_an_output_limit_is_at_most_that_of_the_model(api: str, limit: str, sent: Sent) -> None:
    body = await sent(api, max_output_tokens=10**9)
    assert body[limit] == rules_of("gpt-6-luna").max_output


@pytest.mark.parametrize(
    ("model", "tokens", "price"),
    [("gpt-6-luna", 1_000_000, 0.1), ("claude-haiku-4-5", 200_000, 0.1), ("llama3", None, 1.0)],
)
async def test_the_window_and_the_price_of_cached_tokens_are_those_of_the_called_model(
    model: str, tokens: int | None, price: float, provider_of: MakeProvider
) -> None:
    provider = provider_of("chat", "http://127.0.0.1:1/v1", model="mistral-large")
    called = Overrides(model=model)
    assert (provider.context_window(called), provider.cached_price(called)) == (tokens, price)


REFUSALS: dict[str, tuple[Json, Json, set[str]]] = {
    "OpenAI": ({"error": {"message": "Unsupported parameter", "param": "top_p"}}, {"top_p": 1}, {"top_p"}),
    "a nested field": (
        {"error": {"message": "Unsupported value", "param": "reasoning.summary"}},
        {"reasoning": {"summary": "auto"}},
        {"reasoning"},
    ),
    "Anthropic": ({"error": {"message": "`top_k` is deprecated for this model"}}, {"top_k": 1}, {"top_k"}),
    "Bedrock": ({"message": "user: Extra inputs are not permitted"}, {"user": "u"}, {"user"}),
    "pydantic": ({"detail": [{"loc": ["body", "top_k"], "msg": "Extra inputs"}]}, {"top_k": 1}, {"top_k"}),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_refused_field_is_left_out_of_the_retry_and_of_later_calls(
    case: str, provider_of: MakeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    refusal, extra, fields = REFUSALS[case]
    counted: list[str] = []
    async with serve(reply(400, refusal), HELLO) as server:
        provider = provider_of(
            "responses", server.base_url, model="llama3", extra=extra, on_refused_field=counted.append
        )
        for _ in range(2):
            assert text_of(await streamed(provider, ask("Hi."))) == "Hello."
    assert [bool(fields & body.keys()) for body in server.bodies] == [True, False, False]
    assert len(counted) == 1
    assert [(record.message, record.field) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("the model's API refuses a field", counted[0])
    ]


@pytest.mark.parametrize("api", APIS)
async def test_strict_is_dropped_from_every_tool_when_refused(api: str, provider_of: MakeProvider) -> None:
    answer = HELLO if api == "responses" else stream(frames(chat_chunks({"content": "Hello."})))
    refusal = {"error": {"message": "tools.0.custom.strict: Extra inputs are not permitted"}}
    async with serve(reply(400, refusal), answer) as server:
        await streamed(provider_of(api, server.base_url, model="llama3"), ask("Hi."))
    tools = [body["tools"][0] for body in server.bodies]
    assert [("strict" in (tool.get("function") or tool)) for tool in tools] == [True, False]


@pytest.mark.parametrize(
    ("status", "param", "sent"),
    [
        *((400, param, [True]) for param in ("input[0].content", "store", "model", "tools[0].name", "unknown", None)),
        (400, "top_p", [True, False]),
        (413, "top_p", [True]),
    ],
    ids=str,
)
async def test_a_refusal_is_retried_once_without_a_field_that_is_not_needed(
    status: int, param: str | None, sent: list[bool], provider_of: MakeProvider
) -> None:
    async with serve(reply(status, {"error": {"message": "No.", "param": param}})) as server:
        provider = provider_of("responses", server.base_url, model="llama3", extra={"top_p": 1}, max_retries=0)
        for _ in range(2):  # a field that was not to blame is sent again
            with pytest.raises(ModelRejected):
                await streamed(provider, ask("Hi."))
    assert ["top_p" in body for body in server.bodies] == sent * 2
