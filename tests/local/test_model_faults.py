"""How the offline model notices clients that leave, and when it stops. How it fails is in `tests/providers`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from local.model import OfflineModel
from local.model.journal import Journal
from local.model.offline import make_server
from omniagent.ai.providers.openai.openai_responses import OpenAIOptions
from tests.fixtures.leaving import reading


@asynccontextmanager
async def open_stream(model: OfflineModel, prompt: str) -> AsyncIterator[None]:
    """A stream of which the first piece of text has been read, and whose reader leaves with the context."""
    async with (
        httpx.AsyncClient(base_url=model.base_url, timeout=60) as http,
        http.stream("POST", "/responses", json={"model": "offline", "stream": True, "input": prompt}) as response,
        reading(response, response.aiter_lines()) as lines,
    ):
        async for line in lines:
            if "response.output_text.delta" in line:
                break
        yield


async def test_a_paced_model_takes_its_time() -> None:
    async with OfflineModel(tokens_per_second=50) as model:
        async with open_stream(model, "[long:5000]"):
            pass
        await model.until(lambda journal: journal.disconnects == 1)


def test_it_stops_while_streams_are_stalled() -> None:
    with (
        OfflineModel() as model,
        httpx.stream(
            "POST", f"{model.base_url}/responses", json={"model": "m", "input": "[stall]", "stream": True}, timeout=60
        ) as answer,
    ):
        chunks = answer.iter_bytes()
        assert b"response.created" in next(chunks)
        model.stop()
    assert model.active == 0


def test_it_keeps_an_idle_connection_longer_than_a_client_would_use_it_again() -> None:
    server = make_server(Journal())
    assert server.config.timeout_keep_alive > OpenAIOptions().keepalive_seconds
