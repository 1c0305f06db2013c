"""A chain of models: whatever fails, and whenever, the next one answers, and one that failed is left alone."""

import logging
from collections.abc import Sequence
from itertools import count, pairwise

import pytest

from omniagent.ai.providers import ProviderPool
from omniagent.ai.providers.fallback import LONGEST_BREAK_SECONDS, SHORTEST_BREAK_SECONDS, FallbackProvider
from omniagent.ai.providers.llm_provider import (
    ModelEvent,
    ModelFinish,
    ModelReasoning,
    ModelReasoningDone,
    ModelReplaced,
    ModelRequest,
    ModelText,
    Overrides,
)
from omniagent.ai.providers.model_calls import complete
from omniagent.ai.providers.scripted import ScriptedModel
from omniagent.errors import (
    ConfigurationError,
    ModelAuthError,
    ModelError,
    ModelRejected,
    ModelStreamBroken,
    ModelUnavailable,
)
from omniagent.messages import ChatMessage, ReasoningPart, StepPart, Usage
from tests.fixtures.package_log import logged
from tests.providers.helpers import Closing, ask, only, streamed, text_of

DOWN = ModelUnavailable("503")


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("model", ["one,two, three", ["one", "two", "three"], ["one", "two,three"]])
async def test_a_list_of_models_is_a_chain(model: str | list[str], caplog: pytest.LogCaptureFixture) -> None:
    down, also_down = ScriptedModel(default=DOWN), ScriptedModel(default=DOWN)
    pool = ProviderPool(registrations={"one": down, "two": also_down, "three": ScriptedModel("Hello.", model="three")})
    chain = pool.get(model)
    assert chain is pool.get("one,two,three")
    with caplog.at_level(logging.WARNING):
        assert text_of(await streamed(chain, ask("Hi."))) == "Hello."
    assert logged(caplog) == ["model replaced by the next of its chain"] * 2


@pytest.mark.parametrize("failure", [ModelRejected(), ModelAuthError(), ModelStreamBroken(), ModelUnavailable()])
@pytest.mark.parametrize("shown", [[], [ModelText("Hel")]], ids=["before the first byte", "after it"])
async def test_any_failure_gives_the_call_to_the_next_model(failure: ModelError, shown: list[ModelEvent]) -> None:
    def chain() -> FallbackProvider:
        return FallbackProvider([ScriptedModel([*shown, failure]), ScriptedModel("Hello.", model="second")])

    *events, end = await streamed(chain(), ask("Hi."))
    assert events == [*shown, ModelReplaced("second"), ModelText("Hello.")]
    assert isinstance(end, ModelFinish)
    assert (await complete(chain(), ask("Hi."), purpose="answer")).text == "Hello."


async def test_a_chain_ends_with_the_last_failure() -> None:
    chain = FallbackProvider([ScriptedModel(ModelUnavailable("first")), ScriptedModel(ModelUnavailable("last"))])
    with pytest.raises(ModelUnavailable, match="last"):
        await streamed(chain, ask("Hi."))


async def test_a_model_that_failed_is_left_alone_ever_longer() -> None:
    clock = Clock()
    first, second = ScriptedModel(default=DOWN), ScriptedModel(default="Hello.")
    chain = FallbackProvider([first, second], clock=clock)
    tries: list[float] = []
    for _ in range(1_000):
        await streamed(chain, ask("Hi."))
        if len(first.requests) > len(tries):
            tries.append(clock.now)
        clock.now += 1
    breaks = [after - before for before, after in pairwise(tries)]
    assert breaks[:3] == [SHORTEST_BREAK_SECONDS, 2 * SHORTEST_BREAK_SECONDS, 4 * SHORTEST_BREAK_SECONDS]
    assert max(breaks) == LONGEST_BREAK_SECONDS
    assert len(second.requests) == 1_000


async def test_one_call_at_a_time_tries_a_model_that_failed() -> None:
    clock = Clock()
    first, second = ScriptedModel(DOWN, default="First."), ScriptedModel(default="Second.")
    chain = FallbackProvider([first, second], clock=clock)
    assert text_of(await streamed(chain, ask("Hi."))) == "Second."
    clock.now = SHORTEST_BREAK_SECONDS
    probe = chain.stream(ask("Hi."))
    assert await anext(probe) == ModelText("First.")
    assert text_of(await streamed(chain, ask("Hi."))) == "Second."
    assert [type(event) async for event in probe] == [ModelFinish]
    assert text_of(await streamed(chain, ask("Hi."))) == "First."


async def test_a_model_that_failed_is_still_the_last_resort() -> None:
    first, second = ScriptedModel(DOWN, "First."), ScriptedModel("Second.", DOWN)
    chain = FallbackProvider([first, second], clock=Clock())
    assert text_of(await streamed(chain, ask("Hi."))) == "Second."
    assert text_of(await streamed(chain, ask("Hi."))) == "First."


@pytest.mark.parametrize(("failure", "tried"), [(ModelRejected(), 2), (ModelRejected(api_status=404), 1)])
async def test_only_a_rejection_of_the_request_says_nothing_about_the_model(failure: ModelError, tried: int) -> None:
    first = ScriptedModel(failure, "First.")
    chain = FallbackProvider([first, ScriptedModel(default="Second.")], clock=Clock())
    for _ in range(2):
        await streamed(chain, ask("Hi."))
    assert len(first.requests) == tried


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
    chain = FallbackProvider([first, second], clock=count(step=1_000).__next__)
    _, _, done, *_, end = await streamed(chain, ask("Hi."))
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


def test_a_cached_token_costs_what_it_costs_the_first_model_of_a_chain() -> None:
    class Cheap(ScriptedModel):
        def cached_price(self, overrides: Overrides) -> float:
            return 0.1

    assert FallbackProvider([Cheap(), ScriptedModel()]).cached_price(Overrides()) == 0.1


async def test_closing_a_chain_closes_its_providers() -> None:
    providers = [Closing(), Closing()]
    await FallbackProvider(providers).aclose()
    assert [provider.closed for provider in providers] == [1, 1]
    with pytest.raises(ConfigurationError):
        FallbackProvider([])
