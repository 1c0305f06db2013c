"""A pool makes each provider once; a chain of models asks the next one only while nothing has been paid for."""

import logging
from collections.abc import Sequence

import pytest

from omniagent.ai.providers import LLMProvider, register_provider
from omniagent.ai.providers.fallback import FallbackProvider
from omniagent.ai.providers.llm_provider import (
    ModelEvent,
    ModelFinish,
    ModelReasoning,
    ModelReasoningDone,
    ModelRequest,
    ModelText,
    Overrides,
)
from omniagent.ai.providers.model_calls import ProviderPool
from omniagent.ai.providers.openai.openai_chat import OpenAIChat
from omniagent.ai.providers.openai.openai_responses import OpenAIResponses
from omniagent.ai.providers.scripted import ScriptedModel
from omniagent.errors import ConfigurationError, ModelRejected, ModelStreamBroken, ModelUnavailable, UnknownModelError
from omniagent.messages import ChatMessage, ReasoningPart, StepPart, Usage
from omniagent.settings import Settings
from tests.fixtures.package_log import logged
from tests.providers.canned import frames, serve, stream, text_deltas
from tests.providers.helpers import ask, collect, only, streamed, text_of

HELLO = stream(frames(text_deltas("Hello", ".")))


class Closing(ScriptedModel):
    """Counts how often it was closed."""

    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


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


@pytest.mark.parametrize("model", ["one,two, three", ["one", "two", "three"]])
async def test_a_list_of_models_is_a_chain(model: str | list[str], caplog: pytest.LogCaptureFixture) -> None:
    down, also_down = ScriptedModel(default=ModelUnavailable("503")), ScriptedModel(default=ModelUnavailable("503"))
    pool = ProviderPool(registrations={"one": down, "two": also_down, "three": ScriptedModel("Hello.", model="three")})
    chain = pool.get(model)
    assert chain is pool.get("one,two,three")
    with caplog.at_level(logging.WARNING):
        assert text_of(await streamed(chain, ask("Hi."))) == "Hello."
    assert logged(caplog) == ["model unavailable, asking the next"] * 2


async def test_a_chain_ends_with_the_last_failure() -> None:
    chain = FallbackProvider([ScriptedModel(ModelUnavailable("first")), ScriptedModel(ModelUnavailable("last"))])
    with pytest.raises(ModelUnavailable, match="last"):
        await streamed(chain, ask("Hi."))


async def test_nobody_else_is_asked_once_an_answer_has_begun() -> None:
    second = ScriptedModel("Never.")
    for providers in (
        [ScriptedModel(["Hel", ModelUnavailable("late")]), second],
        [ScriptedModel(ModelUnavailable()), ScriptedModel(["Hel", ModelUnavailable("late")]), second],
    ):
        events = FallbackProvider(providers).stream(ask("Hi."))
        assert await anext(events) == ModelText("Hel")
        with pytest.raises(ModelUnavailable, match="late"):
            await collect(events)
    assert second.requests == []


@pytest.mark.parametrize("failure", [ModelRejected(), ModelStreamBroken()])
async def test_only_an_unavailable_model_is_replaced(failure: Exception) -> None:
    second = ScriptedModel("Never.")
    with pytest.raises(type(failure)):
        await streamed(FallbackProvider([ScriptedModel(failure), second]), ask("Hi."))
    assert second.requests == []


async def test_what_was_meant_for_the_first_model_is_not_sent_to_the_next() -> None:
    sealed = ReasoningPart(text="Hm.", provider_data={"encrypted_content": "sealed"})
    messages = [ChatMessage.user("Hi."), ChatMessage(role="assistant", parts=[StepPart(), sealed])]
    overrides = Overrides(model="gpt-6-sol", temperature=0.5, extra={"reasoning": {}})
    first, second = ScriptedModel(ModelUnavailable()), ScriptedModel("Hello.")
    await streamed(FallbackProvider([first, second]), ModelRequest("", messages, overrides=overrides))
    (asked,) = second.requests
    assert asked.overrides == Overrides(temperature=0.5)
    assert only(asked.messages[1].parts, ReasoningPart) == [ReasoningPart(text="Hm.")]
    assert sealed.provider_data


async def test_the_data_of_reasoning_is_sent_back_only_to_the_model_that_it_came_from() -> None:
    thought: Sequence[ModelEvent] = [ModelReasoning("Hm."), ModelReasoningDone({"encrypted_content": "second's"})]
    first = ScriptedModel(ModelUnavailable(), ModelUnavailable())
    second = ScriptedModel([*thought, "Hello."], "Hello.")
    chain = FallbackProvider([first, second])
    _, done, *_, end = await streamed(chain, ask("Hi."))
    assert isinstance(end, ModelFinish)
    assert end.usage != Usage()

    parts = [
        ReasoningPart(text="Hm.", provider_data=done.provider_data if isinstance(done, ModelReasoningDone) else None),
        ReasoningPart(text="Hm.", provider_data={"encrypted_content": "first's"}),
    ]
    messages = [ChatMessage.user("Hi."), ChatMessage(role="assistant", parts=[StepPart(), *parts])]
    await streamed(chain, ModelRequest("", messages))
    kept = [
        [part.provider_data for part in only(model.requests[-1].messages[1].parts, ReasoningPart)]
        for model in (first, second)
    ]
    assert kept == [[None, {"encrypted_content": "first's"}], [{"encrypted_content": "second's"}, None]]


async def test_closing_a_chain_closes_its_providers() -> None:
    providers = [Closing(), Closing()]
    await FallbackProvider(providers).aclose()
    assert [provider.closed for provider in providers] == [1, 1]
    with pytest.raises(ConfigurationError):
        FallbackProvider([])
