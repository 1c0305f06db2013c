"""All APIs give the same events for the same conversation."""

import pytest

from local.model import OfflineModel
from omniagent.ai.providers.llm_provider import (
    ModelFinish,
    ModelReasoning,
    ModelReasoningDone,
    ModelSource,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
)
from omniagent.errors import ModelAuthError, ModelError, ModelRejected, ModelStreamBroken, ModelUnavailable
from omniagent.messages import FinishReason
from tests.providers.conftest import MakeProvider
from tests.providers.helpers import ALL_APIS, ask, collect, comparable, finish_of, streamed

ANSWERS: dict[str, tuple[list[type], FinishReason]] = {
    '[echo:Grüße, 世界 👋 "quoted"]': ([ModelText], "stop"),
    "[long:300]": ([ModelText], "stop"),
    "[empty]": ([], "stop"),
    "[reason] Say hello.": ([ModelReasoning, ModelReasoningDone, ModelText], "stop"),
    "[echo:As they say.] [cite:https://a.example One]": ([ModelText, ModelSource], "stop"),
    "[refuse]": ([ModelText], "content-filter"),
    "[length] Tell me about rivers.": ([ModelText], "length"),
    '[tool:add {"a": 1, "b": 2}]': ([ModelToolStart, ModelToolDelta, ModelToolCall], "tool-calls"),
    '[tool:add {"a": 1, "b": 2}] [tool:add {"a": 3, "b": 4}]': (
        [ModelToolStart, ModelToolDelta, ModelToolCall] * 2,
        "tool-calls",
    ),
    '[reason] [echo:Adding.] [tool:add {"a": 1, "b": 2}]': (
        [ModelReasoning, ModelReasoningDone, ModelText, ModelToolStart, ModelToolDelta, ModelToolCall],
        "tool-calls",
    ),
    "[bad-args:add]": ([ModelToolStart, ModelToolDelta, ModelToolCall], "tool-calls"),
    '[length] [tool:add {"a": 1234, "b": 5678}]': ([ModelToolStart, ModelToolDelta, ModelToolCall], "length"),
}


@pytest.mark.parametrize("prompt", ANSWERS)
async def test_an_answer_is_the_same_through_every_api(
    prompt: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    kinds, reason = ANSWERS[prompt]
    seen = []
    for api in ALL_APIS:
        provider = provider_of(api, offline.base_url)
        seen.append(comparable(await streamed(provider, ask(prompt))))
    assert all(events == seen[0] for events in seen)
    assert [type(event) for event in seen[0]] == [*kinds, ModelFinish]
    assert finish_of(seen[0]).reason == reason


FAILURES: dict[str, type[ModelError]] = {
    "[fail:400]": ModelRejected,
    "[fail:401]": ModelAuthError,
    "[fail:403]": ModelAuthError,
    "[fail:404]": ModelRejected,
    "[fail:429]": ModelUnavailable,
    "[fail:500]": ModelUnavailable,
    "[fail:503]": ModelUnavailable,
    "[failed] Tell me about rivers.": ModelUnavailable,
}


@pytest.mark.parametrize("prompt", FAILURES)
@pytest.mark.parametrize("api", ALL_APIS)
async def test_a_failure_is_the_same_through_every_api(
    prompt: str, api: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    provider = provider_of(api, offline.base_url, max_retries=0)
    with pytest.raises(ModelError) as raised:
        await streamed(provider, ask(prompt))
    assert type(raised.value) is FAILURES[prompt]
    assert raised.value.public == ModelError.public


@pytest.mark.parametrize("api", ALL_APIS)
async def test_a_stream_that_is_cut_off_gives_what_came_and_then_breaks(
    api: str, offline: OfflineModel, provider_of: MakeProvider
) -> None:
    provider = provider_of(api, offline.base_url)
    events = provider.stream(ask("[break] [long:100]"))
    assert isinstance(await anext(events), ModelText)
    with pytest.raises(ModelStreamBroken):
        await collect(events)
