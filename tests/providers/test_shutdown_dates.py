"""The end of a model, read from its server's list of models."""

from datetime import date
from typing import Any

import pytest

from local.model import OfflineModel
from omniagent.errors import ModelUnavailable
from tests.providers.canned import reply, serve
from tests.providers.conftest import MakeProvider
from tests.providers.helpers import APIS


@pytest.mark.parametrize("api", APIS)
async def test_the_announced_date_is_returned(
    api: str, offline: OfflineModel, provider_of: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = provider_of(api, offline.base_url, model="gpt-6-luna")
    assert await provider.shutdown_date() is None
    monkeypatch.setitem(offline.shutdown_dates, "gpt-6-luna", "2031-05-01")
    assert await provider.shutdown_date() == date(2031, 5, 1)
    assert await provider_of(api, offline.base_url, model="gpt-6-sol").shutdown_date() is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"error": {"message": "Not Found"}}),
        (200, "<html>"),
        (200, []),
        (200, {"message": "UnknownOperationException"}),
        (200, {"data": [None, "gpt-6-luna", {"id": "gpt-6-luna"}]}),
        (200, {"data": [{"id": "gpt-6-luna", "shutdown_date": "soon"}]}),
    ],
)
async def test_a_server_that_announces_no_date_returns_none(status: int, body: Any, provider_of: MakeProvider) -> None:
    async with serve(reply(status, body)) as server:
        assert await provider_of("chat", server.base_url).shutdown_date() is None


async def test_a_server_that_fails_raises(provider_of: MakeProvider) -> None:
    async with serve(reply(503, {"error": {"message": "overloaded"}})) as server:
        with pytest.raises(ModelUnavailable):
            await provider_of("chat", server.base_url, max_retries=0).shutdown_date()
