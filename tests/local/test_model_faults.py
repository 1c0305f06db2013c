"""How the offline model notices clients that leave. How it fails is in `tests/providers`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

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


@pytest.mark.parametrize("prompt", ["[stall] Tell me about rivers.", "[slow] [long:2000]", "[burst:60000]"])
async def test_a_client_that_leaves_in_the_middle_is_noticed(model: OfflineModel, prompt: str) -> None:
    before = model.disconnects
    async with open_stream(model, prompt):
        assert model.active == 1
    await model.until(lambda journal: journal.disconnects == before + 1 and journal.active == 0)


async def test_a_paced_model_takes_its_time() -> None:
    async with OfflineModel(tokens_per_second=50) as model:
        async with open_stream(model, "[long:5000]"):
            pass
        await model.until(lambda journal: journal.disconnects == 1)


async def test_a_whole_answer_that_was_read_to_the_end_is_no_disconnect(model: OfflineModel) -> None:
    before = model.disconnects
    async with httpx.AsyncClient(base_url=model.base_url, timeout=60) as http:
        await http.post("/responses", json={"model": "offline", "input": "[slow:1] [long:20]"})
    await model.until(lambda journal: journal.active == 0)
    assert model.disconnects == before


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
