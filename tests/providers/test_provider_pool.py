"""A pool makes each provider once."""

import pytest

from omniagent.ai.providers import ProviderPool, register_provider
from omniagent.ai.providers.llm_provider import LLMProvider
from omniagent.ai.providers.openai.openai_chat import OpenAIChat
from omniagent.ai.providers.openai.openai_responses import OpenAIResponses
from omniagent.ai.providers.scripted import ScriptedModel
from omniagent.errors import ConfigurationError, UnknownModelError
from omniagent.settings import Settings
from tests.providers.canned import frames, serve, stream, text_deltas
from tests.providers.helpers import Closing, ask, streamed, text_of

HELLO = stream(frames(text_deltas("Hello", ".")))


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

    async with serve(HELLO) as server:
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
