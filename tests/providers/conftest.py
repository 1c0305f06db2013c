"""Providers against the offline model, and no other."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from local.model import OfflineModel
from omniagent.ai.providers import get_llm_provider
from omniagent.ai.providers.api_provider import ApiProvider
from omniagent.ai.providers.llm_provider import LLMProvider
from omniagent.network import AsyncioBackend

MakeProvider = Callable[..., ApiProvider]
CLAUDE = "claude-sonnet-5-5"


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to reach a real model."""
    connect = AsyncioBackend.connect_tcp

    async def refuse(backend: AsyncioBackend, host: str, *args: Any, **options: Any) -> Any:
        assert host == "127.0.0.1", f"a test tried to reach {host}"
        return await connect(backend, host, *args, **options)

    monkeypatch.setattr(AsyncioBackend, "connect_tcp", refuse)


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
