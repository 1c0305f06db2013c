"""Models find their providers by name, and a pool makes each once. New ones need no change of the package."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from omniagent.ai.providers import ProviderPool, get_llm_provider, register_provider
from omniagent.ai.providers.fallback import FallbackProvider
from omniagent.ai.providers.llm_provider import LLMProvider, ModelEvent, ModelFinish, ModelRequest, ModelText
from omniagent.ai.providers.openai.openai_chat import OpenAIChat
from omniagent.ai.providers.openai.openai_compatible import OpenAICompatible
from omniagent.ai.providers.openai.openai_responses import OpenAIResponses
from omniagent.ai.providers.scripted import ScriptedModel
from omniagent.errors import ConfigurationError, UnknownModelError
from omniagent.messages import Usage
from omniagent.settings import Settings
from tests.providers.canned import saying, serve, stream
from tests.providers.helpers import Closing, ask, streamed, text_of

KEY = {"api_key": "sk-test"}
LOCAL = {"base_url": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    ("name", "options", "kind", "model"),
    [
        ("gpt-6-luna", {"api": "responses"}, OpenAIResponses, "gpt-6-luna"),
        ("chatgpt-latest", {}, OpenAIResponses, "chatgpt-latest"),
        ("codex-latest", {}, OpenAIResponses, "codex-latest"),
        ("ft:gpt-6-sol:acme::1", {}, OpenAIResponses, "ft:gpt-6-sol:acme::1"),
        ("gpt-6-luna", {"api": "chat"}, OpenAIChat, "gpt-6-luna"),
        ("openai/gpt-6-luna", {}, OpenAIResponses, "gpt-6-luna"),
        ("openai/anything", {"api": "chat"}, OpenAIChat, "anything"),
        ("openai-chat/llama3", {}, OpenAIChat, "llama3"),
        ("openai-chat/llama3", {"api": "responses"}, OpenAIChat, "llama3"),
        ("openai-responses/openai/gpt-oss-20b", {"api": "chat"}, OpenAIResponses, "openai/gpt-oss-20b"),
        ("openai", {"model": "gpt-6-sol", "api": "chat"}, OpenAIChat, "gpt-6-sol"),
        *((name, LOCAL, OpenAICompatible, name) for name in ("llama3", "meta-llama/Llama-3.3-70B", "mistral-small")),
    ],
)
def test_a_name_or_the_api_option_chooses_the_api(
    name: str, options: dict[str, Any], kind: type[LLMProvider], model: str
) -> None:
    provider = get_llm_provider(name, **KEY, **options)
    assert type(provider) is kind
    assert provider.model == model


def test_an_unknown_model_says_what_to_set() -> None:
    with pytest.raises(
        UnknownModelError, match=r"'llama3'.*OMNIAGENT_MODEL.* anthropic/.* gpt-,.*OPENAI_BASE_URL"
    ) as raised:
        get_llm_provider("llama3", **KEY)
    assert "llama3" not in raised.value.public


@pytest.mark.parametrize(("name", "prefix"), [("gpt-6-luna", "OPENAI"), ("anthropic/claude-sonnet-5-5", "ANTHROPIC")])
def test_a_missing_key_and_a_wrong_address_say_what_to_set(name: str, prefix: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{prefix}_API_KEY or OPENAI_SECRET_ARN"):
        get_llm_provider(name)
    with pytest.raises(ConfigurationError, match=f"{prefix}_BASE_URL"):
        get_llm_provider(name, base_url="localhost:4000")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"think_tags": "open"}, "think_tags must be 'both' or 'closing', not 'open'"),
        ({"api": "completions"}, "OPENAI_API must be one of responses, chat, not 'completions'"),
        ({"name_or_model": "bedrock/openai.gpt-6-luna", "auth": "key"}, "bedrock: auth must be 'sigv4' or 'token'"),
    ],
)
def test_an_unknown_option_says_which_there_are(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        get_llm_provider(**{"name_or_model": "gpt-6-luna", **KEY, **options})


@pytest.mark.parametrize(
    "url", ["http://[::1/v1", "127.0.0.1:1/v1", "/v1", "http://", "ftp://h/v1", "http://h:99999/v1"]
)
def test_an_address_that_is_none_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_BASE_URL"):
        get_llm_provider("gpt-6-luna", base_url=url, **KEY)


class Parrot(LLMProvider):
    """A provider that a team might write."""

    def __init__(self, model: str, *, prefix: str = "") -> None:
        super().__init__(model)
        self.prefix = prefix

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield ModelText(self.prefix + request.messages[-1].text)
        yield ModelFinish("stop", Usage(1, 1))


async def test_a_registered_provider_is_found_by_its_name_and_by_its_prefix_and_answers() -> None:
    register_provider("parrot", Parrot)
    for name in ("parrot/grey", "parrot-grey"):
        provider = get_llm_provider(name, prefix="caw: ")
        assert text_of(await streamed(provider, ask("hello"))) == "caw: hello"
    register_provider("gpt-parrot-", Parrot)
    assert isinstance(get_llm_provider("gpt-parrot-1"), Parrot), "the longest prefix wins"
    assert isinstance(get_llm_provider("gpt-6-luna", **KEY), OpenAIResponses)


async def test_names_with_commas_are_a_chain() -> None:
    provider = get_llm_provider("gpt-6-sol, openai-chat/llama3", **LOCAL)
    assert isinstance(provider, FallbackProvider)
    assert [type(each) for each in provider.providers] == [OpenAICompatible, OpenAIChat]
    assert [each.model for each in provider.providers] == ["gpt-6-sol", "llama3"]
    await provider.aclose()


async def test_the_environment_gives_the_key_and_the_address_that_the_error_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    monkeypatch.setenv("OPENAI_API", "chat")
    provider = get_llm_provider("gpt-6-luna")
    assert isinstance(provider, OpenAIChat)
    assert provider.options.api_key == "sk-env"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert isinstance(get_llm_provider("llama3"), OpenAIChat)
    given = get_llm_provider("gpt-6-luna", api_key="sk-given")
    assert isinstance(given, OpenAIResponses)
    assert (given.options.api_key, given.options.base_url) == ("sk-given", None)
    elsewhere = get_llm_provider("llama3", **LOCAL)
    assert isinstance(elsewhere, OpenAICompatible)
    assert elsewhere.options.api_key is None, "another server is not sent the key"


async def test_a_provider_is_made_once_and_closed_with_the_pool() -> None:
    made: list[Closing] = []

    def acme(model: str) -> LLMProvider:
        made.append(Closing(model=model))
        return made[-1]

    pool = ProviderPool({"api_key": "not for acme"}, {"acme": acme})
    assert pool.get("acme/small") is pool.get(" acme/small ") is made[0]
    assert pool.get("acme/large") is made[1]
    assert [provider.model for provider in made] == ["small", "large"]
    await pool.aclose()
    assert [provider.closed for provider in made] == [1, 1]
    assert pool.get("acme/small") is made[2]


async def test_a_registered_instance_answers_for_every_model_and_stays_open() -> None:
    model = Closing()
    pool = ProviderPool(registrations={"scripted": model, "gpt-": model})
    assert pool.get("scripted") is pool.get("scripted/any") is pool.get("gpt-6-luna") is model
    await pool.aclose()
    assert model.closed == 0


def test_registrations_of_a_pool_are_its_own_and_come_first() -> None:
    everywhere, own = ScriptedModel(), ScriptedModel()
    register_provider("pooled-", everywhere)
    assert ProviderPool().get("pooled-1") is everywhere
    assert ProviderPool(registrations={"pooled": own}).get("pooled-1") is own
    with pytest.raises(UnknownModelError, match="Project"):
        ProviderPool(registrations={"pooled": own}).get("unheard-of")


def test_a_factory_gets_the_options_that_it_has_parameters_for() -> None:
    seen: list[object] = []

    def acme(model: str, timeout_seconds: float) -> LLMProvider:
        seen.append(timeout_seconds)
        return ScriptedModel(model=model)

    ProviderPool.from_settings(Settings(model_timeout_seconds=7), {"acme": acme}).get("acme/x")
    assert seen == [7]


@pytest.mark.parametrize("model", ["", " , ", []])
def test_an_empty_name_is_a_wrong_setting(model: str | list[str]) -> None:
    with pytest.raises(ConfigurationError, match="OMNIAGENT_MODEL"):
        ProviderPool().get(model)


def test_a_factory_that_makes_something_else_is_named() -> None:
    with pytest.raises(ConfigurationError, match="registered for 'acme/x' makes must be an LLMProvider, not None"):
        ProviderPool(registrations={"acme": lambda _: None}).get("acme/x")  # type: ignore[dict-item,return-value]


async def test_the_settings_choose_api_address_and_key() -> None:
    async def key() -> str:
        return "from-a-function"

    async with serve(stream(saying("responses", "Hello."))) as server:
        settings = Settings(openai_api="responses", openai_base_url=server.base_url, openai_api_key="from-settings")
        for pool in (
            ProviderPool.from_settings(settings),
            ProviderPool.from_settings(settings, keys={"openai": (key, key)}),
        ):
            provider = pool.get("llama3")
            assert isinstance(provider, OpenAIResponses)
            assert text_of(await streamed(provider, ask("Hi."))) == "Hello."
            assert isinstance(pool.get("openai-chat/llama3"), OpenAIChat)
            await pool.aclose()
        assert server.keys == ["from-settings", "from-a-function"]
