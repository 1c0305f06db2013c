"""Providers against the offline model, and no other."""

import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

import httpcore2
import pytest
import pytest_asyncio
from anthropic.types import message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from pydantic import TypeAdapter

from local.model import OfflineModel
from omniagent.ai.providers import get_llm_provider
from omniagent.ai.providers.api_provider import ApiProvider
from omniagent.ai.providers.llm_provider import LLMProvider, ModelRequest
from tests.providers.canned import Json
from tests.providers.helpers import ask, streamed

MakeProvider = Callable[..., ApiProvider]
Sent = Callable[..., Awaitable[Json]]
TYPES: dict[str, TypeAdapter[Any]] = {
    "responses": TypeAdapter(response_create_params.ResponseCreateParamsStreaming),
    "chat": TypeAdapter(completion_create_params.CompletionCreateParamsStreaming),
    "messages": TypeAdapter(message_create_params.MessageCreateParamsStreaming),
}
NOT_IN_TYPES = {
    "responses": frozenset[str](),
    # Fields of compatible servers.
    "chat": frozenset({"reasoning"}),
    # Only older models take it.
    "messages": frozenset({"temperature"}),
}
"""What is sent on purpose, although the SDK's types lack it."""
CLAUDE = "claude-sonnet-5-5"


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[Json]:
    """What is sent, wherever it is sent: nothing leaves the process."""
    sent: list[Json] = []

    async def refuse(_: httpcore2.AsyncConnectionPool, request: httpcore2.Request) -> httpcore2.Response:
        assert isinstance(request.stream, AsyncIterable)
        sent.append(json.loads(b"".join([piece async for piece in request.stream])))
        return httpcore2.Response(400, content=b"that is all")

    monkeypatch.setattr(httpcore2.AsyncConnectionPool, "handle_async_request", refuse)
    return sent


@pytest.fixture(scope="module")
def offline() -> Iterator[OfflineModel]:
    with OfflineModel() as model:
        yield model


@pytest_asyncio.fixture
async def provider_of() -> AsyncIterator[MakeProvider]:
    """Make providers that are closed after the test."""
    made: list[LLMProvider] = []

    def make(api: str, base_url: str, model: str = "", **options: Any) -> ApiProvider:
        if api == "messages":
            provider = get_llm_provider(f"anthropic/{model or CLAUDE}", base_url=base_url, **options)
        else:
            provider = get_llm_provider(model or "gpt-6-luna", api=api, base_url=base_url, **options)
        assert isinstance(provider, ApiProvider)
        made.append(provider)
        return provider

    yield make
    for provider in made:
        await provider.aclose()


@pytest.fixture
def sent(offline: OfflineModel, provider_of: MakeProvider) -> Sent:
    """Send a request, and return its body: the offline model has accepted it, and it fits the SDK's types."""

    async def send(
        api: str, request: ModelRequest = ask("[echo:x]", tools=()), model: str = "", **options: Any
    ) -> Json:
        await streamed(provider_of(api, offline.base_url, model=model, **options), request)
        body = offline.requests[-1].body
        wanted = _plain(body, NOT_IN_TYPES[api])
        assert _plain(TYPES[api].validate_python(wanted)) == wanted, "the SDK's types lack a field of the request"
        return body

    return send


def _plain(value: Any, without: frozenset[str] = frozenset()) -> Any:
    """Return plain values, without some fields. What the SDKs type as iterables is validated as it is read."""
    if isinstance(value, dict):
        return {name: _plain(each, without) for name, each in value.items() if name not in without}
    return (
        value
        if isinstance(value, str) or not isinstance(value, Iterable)
        else [_plain(each, without) for each in value]
    )
