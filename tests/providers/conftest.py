"""Providers against the offline model, and no other."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from local.model import OfflineModel
from omniagent.ai.providers import get_llm_provider
from omniagent.ai.providers.api_provider import ApiProvider
from omniagent.ai.providers.llm_provider import LLMProvider
from omniagent.ai.providers.openai.lean_openai import httpx2

MakeProvider = Callable[..., ApiProvider]
CLAUDE = "claude-sonnet-5-5"


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to reach a real model."""
    send = httpx2.AsyncHTTPTransport.handle_async_request

    async def refuse(transport: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
        assert request.url.host == "127.0.0.1", f"a test tried to reach {request.url.host}"
        return await send(transport, request)

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", refuse)


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
