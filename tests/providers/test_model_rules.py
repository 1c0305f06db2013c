"""What a model refuses is not sent; what its API refuses by name is left out, once and from then on."""

import pytest

from local.model import OfflineModel
from omniagent.ai.providers.llm_provider import Overrides
from omniagent.ai.providers.model_rules import FieldPath, fit, rules_of
from omniagent.errors import ConfigurationError, ModelRejected
from tests.providers.canned import Json, chat_chunks, frames, reply, serve, stream, text_deltas
from tests.providers.conftest import MakeProvider, Sent
from tests.providers.helpers import APIS, ask, streamed, text_of

HELLO = stream(frames(text_deltas("Hello", ".")))
RESPONSES, CHAT, MESSAGES = ("reasoning", "effort"), ("reasoning_effort",), ("output_config", "effort")
ADAPTIVE = {"type": "adaptive", "display": "summarized"}
BUDGET = {"type": "enabled", "budget_tokens": 2000}
OFF = {"type": "disabled"}
SAMPLING = {"temperature": 0.5, "top_p": 0.9}


def effort(path: FieldPath, name: str | None) -> Json:
    if name is None:
        return {}
    return {path[0]: {path[1]: name}} if len(path) > 1 else {path[0]: name}


@pytest.mark.parametrize("path", [RESPONSES, CHAT])
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
        ("claude-haiku-4-5", None, True),
    ],
)
def test_sampling_is_sent_only_to_a_model_that_takes_it(
    model: str, chosen: str | None, takes: bool, path: FieldPath
) -> None:
    fitted = fit(SAMPLING | effort(path, chosen), rules_of(model), path)
    assert SAMPLING.keys() & fitted.keys() == (SAMPLING.keys() if takes else set())


@pytest.mark.parametrize("path", [RESPONSES, CHAT])
@pytest.mark.parametrize(
    ("model", "default"),
    [
        ("gpt-6-luna", "none"),
        ("gpt-6-luna-2026-09-01", "none"),
        ("us.openai.gpt-6-luna", "none"),
        ("gpt-6-sol", None),
        ("gpt-6.1-luna", None),
        ("llama3", None),
        ("my-gpt-6-luna", None),
    ],
)
def test_only_gpt_6_luna_has_the_effort_none_by_default(model: str, default: str | None, path: FieldPath) -> None:
    rules = rules_of(f"openai/{model}")
    assert fit({}, rules, path) == effort(path, default)
    for chosen in (effort(path, "high"), {"reasoning": {"summary": "auto"}}):
        assert fit(chosen, rules, path) == chosen


@pytest.mark.parametrize(
    ("path", "chosen", "expected"),
    [
        (RESPONSES, {"reasoning": {"effort": "none", "summary": "auto"}}, {"effort": "low", "summary": "auto"}),
        (CHAT, {"reasoning_effort": "none"}, "low"),
    ],
)
def test_an_effort_that_the_model_lacks_becomes_the_nearest(path: FieldPath, chosen: Json, expected: object) -> None:
    assert fit(chosen, rules_of("gpt-6-astra"), path) == {path[0]: expected}


@pytest.mark.parametrize(
    ("model", "limit", "expected"),
    [
        ("gpt-6-luna", 10**9, 128_000),
        ("claude-sonnet-5-5", 500, 500),
        ("claude-sonnet-5-5", 10**6, 128_000),
        ("claude-haiku-4-5", 10**6, 64_000),
        ("llama3", 10**9, 10**9),
    ],
)
@pytest.mark.parametrize("field", ["max_output_tokens", "max_completion_tokens", "max_tokens"])
def test_an_output_limit_is_at_most_that_of_the_model(field: str, model: str, limit: int, expected: int) -> None:
    assert fit({field: limit}, rules_of(model), MESSAGES) == {field: expected}


@pytest.mark.parametrize(
    ("model", "thinking", "chosen", "expected"),
    [
        ("claude-sonnet-5-5", OFF, None, {"type": "between_tools"}),
        ("claude-sonnet-5-5", OFF, "xhigh", None),
        ("claude-opus-5-5", OFF, None, None),
        ("claude-fable-5", OFF, None, None),
        ("claude-haiku-5-5", OFF, "high", OFF),
        ("claude-haiku-5-5", OFF, "max", None),
        ("claude-opus-5", OFF, "max", None),
        ("claude-opus-4-8", OFF, "max", OFF),
        ("claude-sonnet-5-5", ADAPTIVE, "max", ADAPTIVE),
        ("claude-sonnet-5-5", BUDGET, None, {"type": "adaptive"}),
        ("claude-haiku-5-5", BUDGET, None, {"type": "adaptive"}),
        ("claude-sonnet-5", BUDGET, None, BUDGET),
        ("claude-sonnet-4-6", BUDGET, None, BUDGET),
        ("claude-haiku-4-5", ADAPTIVE, None, {"type": "enabled", "budget_tokens": 8192}),
        ("claude-haiku-4-5", OFF, None, OFF),
        ("a-model-of-our-own", BUDGET, None, BUDGET),
    ],
)
def test_thinking_is_asked_for_as_the_model_takes_it(
    model: str, thinking: Json, chosen: str | None, expected: Json | None
) -> None:
    body = {"thinking": thinking, "max_tokens": 16_384, **effort(MESSAGES, chosen)}
    assert fit(body, rules_of(model), MESSAGES).get("thinking") == expected


@pytest.mark.parametrize(("limit", "budget"), [(8_000, 4_000), (1_500, 1_024), (1_024, None)])
def test_a_budget_of_thinking_fits_into_the_answer(limit: int, budget: int | None) -> None:
    thinking = fit({"thinking": ADAPTIVE, "max_tokens": limit}, rules_of("claude-haiku-4-5"), MESSAGES).get("thinking")
    assert thinking == (budget and {"type": "enabled", "budget_tokens": budget})


@pytest.mark.parametrize(
    ("model", "thinking", "takes"),
    [
        ("claude-sonnet-5-5", None, False),
        ("claude-opus-4-7", None, False),
        ("claude-haiku-4-5", None, True),
        ("claude-haiku-4-5", BUDGET, False),
        ("a-model-of-our-own", None, True),
    ],
)
def test_claude_is_sent_a_temperature_only_without_thinking(model: str, thinking: Json | None, takes: bool) -> None:
    body = {"temperature": 0.5} | ({"thinking": thinking} if thinking else {})
    assert ("temperature" in fit(body, rules_of(model), MESSAGES)) == takes


@pytest.mark.parametrize("path", [RESPONSES, CHAT])
@pytest.mark.parametrize(("chosen", "takes"), [(None, True), ("high", False)])
def test_claude_behind_openais_api_thinks_if_it_has_an_effort(path: FieldPath, chosen: str | None, takes: bool) -> None:
    body = {"temperature": 0.5, **effort(path, chosen)}
    assert ("temperature" in fit(body, rules_of("claude-sonnet-4-6"), path)) == takes


@pytest.mark.parametrize("chosen", [None, "high"])
@pytest.mark.parametrize("model", ["gpt-6-sol", "gpt-6-luna"])
async def test_chat_tools_of_gpt_6_are_called_without_reasoning(model: str, chosen: str | None, sent: Sent) -> None:
    body = await sent("chat", ask("[echo:x]"), model, extra=effort(CHAT, chosen))
    assert body["reasoning_effort"] == "none"


async def test_a_model_without_chat_tools_names_the_api_to_set(
    offline: OfflineModel, provider_of: MakeProvider
) -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API=responses"):
        await streamed(provider_of("chat", offline.base_url, model="gpt-6-astra"), ask("Hi."))


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


async def test_only_the_refused_part_of_a_field_is_left_out(provider_of: MakeProvider) -> None:
    refusal = {"error": {"message": "Unsupported value", "param": "reasoning.summary"}}
    async with serve(reply(400, refusal), HELLO) as server:
        extra = {"reasoning": {"summary": "auto", "effort": "low"}}
        await streamed(provider_of("responses", server.base_url, model="llama3", extra=extra), ask("Hi."))
    assert [body["reasoning"] for body in server.bodies] == [extra["reasoning"], {"effort": "low"}]


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
